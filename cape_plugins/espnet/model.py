"""The model ``cape_asr``: ESPnet's ASR model with timestamps, and with features as in the paper.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2.
"""

import functools
import inspect
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.asr.preencoder.linear import LinearProjection
from espnet2.layers.utterance_mvn import UtteranceMVN
from torch import Tensor

from cape_plugins.espnet.frontend import AudioTooShortError, CapeFbank, check_finite
from cape_plugins.espnet.specaug import CapeSpecAug
from cape_plugins.positions import frame_times, widest


class CapeASRModel(ESPnetASRModel):
    """ESPnet's CTC / attention / transducer model, with three differences before the encoder.

    Put it into a recipe as ``model: cape_asr``; ``model_conf`` is that of ESPnet's model.

    - The encoder gets the time of each frame in seconds: from ``frontend: cape_fbank``, or from
      the hop of ESPnet's default frontend. In training, cape_fbank matches its hops to the batch,
      so that nothing is padded; in evaluation and collect-stats it takes the nominal hop.
    - Features are normalised first and masked (SpecAugment) then, as in the paper. ESPnet's
      order is the other one: masked cells count in the statistics and do not end up as the mean.
    - ``normalize: utterance_mvn`` leaves padding out of the variance; ESPnet's own counts it once
      means are subtracted, so that there the features depend on the batch.

    Raises:
        ValueError: the encoder takes no times, its ``frame_shift`` is not the frontend's, the
            preencoder changes the frames, or SpecAugment's masks are wider than the features.
    """

    # --print_config reads the signature
    @functools.wraps(ESPnetASRModel.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names: Sequence[str] | None = None  # of the utterances in the batch, for messages
        takes = () if self.encoder is None else inspect.signature(self.encoder.forward).parameters
        if "times" not in takes:
            name = type(self.encoder).__name__
            raise ValueError(
                f"model: cape_asr hands timestamps to the encoder, and {name} takes none: choose "
                "encoder: cape_transformer, cape_conformer, cape_e_branchformer or "
                "cape_branchformer, or model: espnet"
            )
        if not (self.preencoder is None or isinstance(self.preencoder, LinearProjection)):
            raise ValueError(
                "model: cape_asr needs a preencoder that keeps the frames (linear, or none), got "
                f"{type(self.preencoder).__name__}"
            )
        if isinstance(self.specaug, CapeSpecAug) and self.frontend is not None:
            self.specaug.check_channels(self.frontend.output_size())
        if isinstance(self.normalize, UtteranceMVN) and not self.normalize.norm_vars:
            logging.warning(
                "normalize: utterance_mvn leaves the variances as they are; the paper's features "
                "take normalize_conf: {norm_means: true, norm_vars: true}"
            )
        self._check_frame_shift()

    def _check_frame_shift(self) -> None:
        shift = frame_shift(self.frontend)
        if shift is None:
            name = "input_size" if self.frontend is None else type(self.frontend).__name__
            logging.warning(
                f"cape_asr: {name} does not tell its hop; frames are taken to be "
                f"{self.encoder.frame_shift:g} s apart, encoder_conf frame_shift"
            )
        elif not math.isclose(shift, self.encoder.frame_shift, rel_tol=1e-3):
            fs = sampling_rate_of(self.frontend)
            raise ValueError(
                f"the frontend's frames are {shift:.6g} s apart (hop_length / fs), and "
                f"encoder_conf frame_shift is {self.encoder.frame_shift:g} s: if the audio has "
                f"{fs} Hz, set frame_shift: {shift:.6g}, or another hop_length; if not, set fs"
            )

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """As ESPnet's, which hands over the utterances' names as ``utt_id``."""
        names = kwargs.get("utt_id")
        # DataParallel splits a batch, but not its names
        self.names = names if names is not None and len(names) == len(speech) else None
        try:
            return super().forward(speech, speech_lengths, text, text_lengths, **kwargs)
        finally:
            self.names = None

    def encode(self, speech: Tensor, speech_lengths: Tensor) -> tuple[Any, Tensor]:
        """Frontend, normalisation, SpecAugment in training, encoder; used by asr_inference.

        Args:
            speech: (B, N) samples, or (B, T, channels) features if there is no frontend.
            speech_lengths: (B,) samples (or frames) of each utterance.

        Returns:
            (B, T', output_size), or that and the intermediate outputs, as ESPnet's model; and the
            (B,) frames of each utterance.

        Raises:
            ValueError: the frontend, SpecAugment or the encoder finds fault with its input.
        """
        with torch.autocast(speech.device.type, enabled=self.autocast_frontend):
            feats, lengths, times = self.extract_with_times(speech, speech_lengths)
            if isinstance(self.normalize, UtteranceMVN):
                feats = normalize_utterances(feats, lengths, self.normalize)
            elif self.normalize is not None:
                feats, lengths = self.normalize(feats, lengths)
            if self.specaug is not None and self.training:
                feats, lengths = self.specaug(feats, lengths)
        if self.preencoder is not None:
            feats, lengths = self.preencoder(feats, lengths)

        # as in ESPnet's model from here on, but for the times
        extra = {}
        if getattr(self.encoder, "interctc_use_conditioning", False) or getattr(
            self.encoder, "ctc_trim", False
        ):
            extra["ctc"] = self.ctc
        out, out_lengths, _ = self.encoder(feats, lengths, times=times, **extra)
        intermediate = None
        if isinstance(out, tuple):
            out, intermediate = out
        if self.postencoder is not None:
            out, out_lengths = self.postencoder(out, out_lengths)
        return (out if intermediate is None else (out, intermediate)), out_lengths

    def extract_with_times(
        self, speech: Tensor, speech_lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features (B, T, channels), their (B,) lengths and times (B, T) in seconds.

        The times are None where the hop is unknown; the encoder then takes its ``frame_shift``.

        Raises:
            AudioTooShortError: no utterance has a frame; asr_inference writes an empty result.
        """
        if isinstance(self.frontend, CapeFbank):
            speech = speech[:, : speech_lengths.max()]  # for DataParallel
            return self.frontend.forward_with_times(
                speech, speech_lengths, match_frames=self.training, names=self.names
            )
        longest, needed = int(speech_lengths.max()), min_samples(self.frontend)
        if longest < needed:  # torch.stft would say something of its padding
            raise AudioTooShortError(
                f"has {longest} samples and features need {needed}, return empty results",
                longest,
                needed,
            )
        check_finite(speech, speech_lengths, self.names)
        feats, lengths = self._extract_feats(speech, speech_lengths)
        shift = frame_shift(self.frontend)
        if shift is None:
            return feats, lengths, None
        device = feats.device
        times = frame_times(lengths, shift, feats.shape[1], device=device, dtype=widest(device))
        if not self.frontend.stft.center:
            times = times + self.frontend.stft.n_fft / 2 / self.frontend.logmel.mel_options["sr"]
        return feats, lengths, times


def sampling_rate_of(frontend: AbsFrontend | None) -> int | None:
    """Hz that the frontend expects, if it is one of those that tell their hop."""
    if isinstance(frontend, CapeFbank):
        return frontend.fs
    return int(frontend.logmel.mel_options["sr"]) if isinstance(frontend, DefaultFrontend) else None


def frame_shift(frontend: AbsFrontend | None) -> float | None:
    """Seconds between the frontend's frames at its nominal hop, or None if it does not tell."""
    if isinstance(frontend, CapeFbank):
        return frontend.frame_shift
    if isinstance(frontend, DefaultFrontend) and frontend.stft is not None:
        # not frontend.hop_length, which nothing reads
        return frontend.stft.hop_length / frontend.logmel.mel_options["sr"]
    return None


def min_samples(frontend: AbsFrontend | None) -> int:
    """Samples of the shortest audio that has features, as far as the frontend tells; ≥ 1."""
    if isinstance(frontend, CapeFbank):
        return frontend.min_samples
    if isinstance(frontend, DefaultFrontend) and frontend.stft is not None:
        # centred windows mirror half a window at each end, which must be there
        stft = frontend.stft
        return stft.n_fft // 2 + 1 if stft.center else stft.n_fft
    return 1


def normalize_utterances(feats: Tensor, lengths: Tensor, settings: UtteranceMVN) -> Tensor:
    """Subtract each utterance's mean and divide by its deviation, channel by channel.

    Args:
        feats: (B, T, channels), left as they are.
        lengths: (B,) frames of each utterance; what lies beyond does not count.
        settings: which of the two to do (``norm_means``, ``norm_vars``), and ``eps``.

    Returns:
        (B, T, channels), 0 in padding.
    """
    lengths = lengths.to(feats.device)
    index = torch.arange(feats.shape[1], device=feats.device)
    padding = (index >= lengths[:, None])[..., None]
    count = lengths[:, None, None].to(feats.dtype)
    feats = feats.masked_fill(padding, 0.0)
    centred = (feats - feats.sum(dim=1, keepdim=True) / count).masked_fill(padding, 0.0)
    deviation = (centred.square().sum(dim=1, keepdim=True) / count).sqrt()
    if settings.norm_means:
        feats = centred
    if settings.norm_vars:
        feats = feats / deviation.clamp(min=settings.eps)
    return feats
