"""The model ``cape_asr``: ESPnet's ASR model with timestamps, and with features as in the paper."""

import functools
import logging
import math
from typing import Any

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.asr.preencoder.linear import LinearProjection
from espnet2.layers.utterance_mvn import UtteranceMVN
from torch import Tensor

from cape_plugins.espnet.encoder import InSeconds
from cape_plugins.espnet.loading import takes_another_hop
from cape_plugins.espnet.options import check_long_enough
from cape_plugins.espnet.paper.frontend import CapeFbank
from cape_plugins.espnet.paper.specaug import CapeSpecAug
from cape_plugins.mark import compare_first
from cape_plugins.places import frame_times, widest


class CapeASRModel(ESPnetASRModel):
    """ESPnet's CTC / attention / transducer model, with three differences before the encoder.

    Put it into a recipe as ``model: cape_asr``; ``model_conf`` is that of ESPnet's model.

    - The encoder gets the time of each frame in seconds. In training, ``frontend: cape_fbank``
      matches its hops to the batch, so that nothing is padded.
    - Features are normalised before they are masked, as in the paper (section 4.2): a masked cell
      is the utterance's mean. ESPnet masks first, and normalisation moves the cells away from 0.
    - ``normalize: utterance_mvn`` leaves padding out of mean and variance. So does ESPnet 202611's;
      that of 202511 counts padding in the variance if ``norm_means`` is on.

    Raises:
        ValueError: encoder, frontend or SpecAugment do not fit together.
    """

    # --print_config reads the signature
    @functools.wraps(ESPnetASRModel.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.encoder, InSeconds):
            raise ValueError(
                f"model: cape_asr hands times to the encoder, {type(self.encoder).__name__} takes "
                "none: choose encoder: cape_transformer, cape_conformer, cape_e_branchformer or "
                "cape_branchformer, or model: espnet"
            )
        if not (self.preencoder is None or isinstance(self.preencoder, LinearProjection)):
            raise ValueError(
                "model: cape_asr needs a preencoder that keeps the frames (linear, or none), got "
                f"{type(self.preencoder).__name__}"
            )
        if isinstance(self.specaug, CapeSpecAug) and self.frontend is not None:
            self.specaug.check_channels(self.frontend.output_size())
        rate, shift, _ = facts(self.frontend)
        if shift is None:
            logging.warning(
                "cape_asr: the frontend does not tell its hop; frames are taken to be "
                f"{self.encoder.frame_shift:g} s apart, encoder_conf frame_shift"
            )
        elif not math.isclose(shift, self.encoder.frame_shift, rel_tol=1e-3):
            raise ValueError(
                f"the frontend's frames are {shift:.6g} s apart (hop_length / fs), and "
                f"encoder_conf frame_shift is {self.encoder.frame_shift:g} s: if the audio has "
                f"{rate} Hz, set frame_shift: {shift:.6g}, or another hop_length; if not, set fs"
            )
        else:
            takes_another_hop(self.encoder)
        compare_first(self)

    def encode(self, speech: Tensor, speech_lengths: Tensor) -> tuple[Any, Tensor]:
        """Frontend, normalisation, SpecAugment in training, encoder; used by asr_inference.

        Args:
            speech: (B, N) samples, or (B, T, channels) features if there is no frontend.
            speech_lengths: (B,) samples (or frames) of each utterance.

        Returns:
            (B, T', output_size), or that and the intermediate outputs, as ESPnet's model; and the
            (B,) frames of each utterance.
        """
        device = speech.device.type
        amp = self.autocast_frontend and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=amp):
            feats, lengths, times = self.extract_with_times(speech, speech_lengths)  # (B, T, …)
            if isinstance(self.normalize, UtteranceMVN):
                feats = normalize_utterances(feats, lengths, self.normalize)
            elif self.normalize is not None:
                feats, lengths = self.normalize(feats, lengths)
            if self.specaug is not None and self.training:
                feats, lengths = self.specaug(feats, lengths)
        if self.preencoder is not None:
            feats, lengths = self.preencoder(feats, lengths)

        # as in ESPnet's model from here on, but for the times
        reads_ctc = ("interctc_use_conditioning", "ctc_trim")
        ctc = any(getattr(self.encoder, option, False) for option in reads_ctc)
        extra = {"ctc": self.ctc} if ctc else {}
        out, out_lengths, _ = self.encoder(feats, lengths, times=times, **extra)  # (B, T', …)
        out, *intermediate = out if isinstance(out, tuple) else (out,)
        if self.postencoder is not None:
            out, out_lengths = self.postencoder(out, out_lengths)
        return ((out, *intermediate) if intermediate else out), out_lengths

    def extract_with_times(
        self, speech: Tensor, speech_lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features (B, T, channels), their (B,) lengths and times (B, T) in seconds.

        The times are None where the hop is unknown; the encoder then takes its ``frame_shift``.

        Raises:
            TooShortUttError, ValueError: audio is too short for a frame, or not what
                :meth:`cape_plugins.espnet.paper.frontend.CapeFbank.forward_with_times` takes.
        """
        if isinstance(self.frontend, CapeFbank):
            if getattr(self, "_is_replica", False):  # DataParallel's shares of a batch
                speech = speech[:, : speech_lengths.max()]
            return self.frontend.forward_with_times(
                speech, speech_lengths, match_frames=self.training
            )
        rate, shift, least = facts(self.frontend)
        check_long_enough(speech.shape[1], least, "samples")  # torch.stft says less
        feats, lengths = self._extract_feats(speech, speech_lengths)
        if shift is None:
            return feats, lengths, None
        device, stft = feats.device, self.frontend.stft
        times = frame_times(lengths, shift, feats.shape[1], device=device, dtype=widest(device))
        return feats, lengths, times if stft.center else times + stft.n_fft / 2 / rate


def facts(frontend: AbsFrontend | None) -> tuple[int | None, float | None, int]:
    """Hz and seconds of the nominal hop, None where unknown; samples of the shortest audio, ≥ 1."""
    if isinstance(frontend, CapeFbank):
        return frontend.fs, frontend.hop_length / frontend.fs, frontend.min_samples
    if not isinstance(frontend, DefaultFrontend):
        return None, None, 1
    rate, stft = int(frontend.logmel.mel_options["sr"]), frontend.stft
    if stft is None:
        return rate, None, 1
    # centred windows mirror half a window at each end; frontend.hop_length is read by nothing
    return rate, stft.hop_length / rate, stft.n_fft // 2 + 1 if stft.center else stft.n_fft


def normalize_utterances(feats: Tensor, lengths: Tensor, settings: UtteranceMVN) -> Tensor:
    """Subtract each utterance's mean and divide by its deviation, channel by channel.

    Features are (B, T, channels), of (B,) frames, and 0 in padding afterwards. ``settings`` has
    ``norm_means`` and ``norm_vars``, which of the two is done, and ``eps``.
    """
    count = lengths.to(feats.device)[:, None, None]  # (B, 1, 1)
    padding = torch.arange(feats.shape[1], device=feats.device)[:, None] >= count  # (B, T, 1)
    feats = feats.masked_fill(padding, 0.0)
    centred = (feats - feats.sum(dim=1, keepdim=True) / count).masked_fill(padding, 0.0)
    variance = centred.square().sum(dim=1, keepdim=True) / count
    feats = centred if settings.norm_means else feats
    if not settings.norm_vars:
        return feats
    # clamped before the root, whose gradient at 0 would be infinite
    return feats / variance.clamp(min=settings.eps**2).sqrt()
