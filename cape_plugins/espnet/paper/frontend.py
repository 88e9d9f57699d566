"""The frontend ``cape_fbank``: log-mel features and the time of each frame.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2 (features; training without padding).
"""

import math
import warnings

import humanfriendly
import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.layers.log_mel import LogMel
from torch import Tensor

from cape_plugins.checks import check_count, check_values
from cape_plugins.espnet.options import check_long_enough
from cape_plugins.places import widest

WINDOW_SECONDS = 0.025
HOP_SECONDS = 0.010
# where hops are matched, an utterance lasts from 1 / this to this times the mean of its batch
MAX_RATIO = 2.0
SIMILAR = (
    f"speech_lengths must lie within {1 / MAX_RATIO:g} to {MAX_RATIO:g} times the mean of their "
    "batch: batch utterances of similar duration, iterator_type: task"
)
_FRAMES_AT_ONCE = 2**15  # bounds the memory of windows and spectra


class CapeFbank(AbsFrontend):
    """Log-mel features with times; in training without padding, equally many per utterance.

    Put it into a recipe as ``frontend: cape_fbank``, beside ``model: cape_asr``; the arguments
    are ``frontend_conf``. Names and features are those of ESPnet's default frontend: frame i is
    centred at sample i · hop, and the signal is mirrored at its ends. Here these are each
    utterance's own ends, so that padding changes nothing.

    With the hops matched to the batch, an utterance of L samples takes the hop
    ``hop_length`` · L / mean(L), rounded down. All utterances then have about as many frames as
    the mean duration has at ``hop_length``. Surplus frames are dropped, uniformly at random.

    Args:
        fs: sampling rate of the audio in Hz, also as ``16k``.
        n_fft: points of the Fourier transform; None is the power of two that holds the window.
        win_length: samples of the window; None is 25 ms (section 4.2).
        hop_length: samples of the nominal hop; None is 10 ms (section 4.2). May be set later, for
            a sweep of hops in evaluation.
        window: one of torch's, such as ``hann`` (ESPnet's default) or ``hamming`` (authors).
        n_mels: channels, 80 in the paper.
        hop_unit: matched hops are whole ``samples``, or whole ``milliseconds`` as in the authors'
            code, which leaves more frames to drop.

    Raises:
        ValueError: a value is out of range, or milliseconds are no whole number of samples.
    """

    def __init__(
        self,
        fs: int | str = 16000,
        n_fft: int | None = None,
        win_length: int | None = None,
        hop_length: int | None = None,
        window: str = "hann",
        n_mels: int = 80,
        hop_unit: str = "samples",
    ) -> None:
        super().__init__()
        self.fs = sampling_rate(fs)
        self.win_length = round(WINDOW_SECONDS * self.fs) if win_length is None else win_length
        self.hop_length = round(HOP_SECONDS * self.fs) if hop_length is None else hop_length
        check_count("win_length", self.win_length)
        check_count("hop_length", self.hop_length)
        self.n_fft = 2 ** math.ceil(math.log2(self.win_length)) if n_fft is None else n_fft
        check_count("n_fft", self.n_fft, least=self.win_length)
        check_count("n_mels", n_mels)
        if not hasattr(torch, f"{window}_window"):
            raise ValueError(f"window must be one of torch's, such as hann, got {window!r}")
        if hop_unit != "samples" and (hop_unit != "milliseconds" or self.fs % 1000):
            raise ValueError(
                "hop_unit must be samples, or milliseconds where fs is divisible by 1000, got "
                f"{hop_unit!r} at fs: {self.fs}"
            )
        self.window = window
        self.hop_unit = 1 if hop_unit == "samples" else self.fs // 1000  # in samples
        # the first sample of a window, seen from the frame's centre, as torch.stft has it
        self.window_start = (self.n_fft - self.win_length) // 2 - self.n_fft // 2
        self.logmel = LogMel(fs=self.fs, n_fft=self.n_fft, n_mels=n_mels)

    def output_size(self) -> int:
        """Feature channels."""
        return self.logmel.melmat.shape[1]

    @property
    def min_samples(self) -> int:
        """Samples of the shortest utterance that has features: it fills half a window."""
        return max(-self.window_start, self.win_length + self.window_start) + 1

    def forward(self, input: Tensor, input_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`forward_with_times` without times, for collect-stats and ESPnet's own models."""
        if self.training and torch.is_grad_enabled():
            warnings.warn(
                "cape_fbank matches the hops to the batch only with model: cape_asr, which hands "
                "the times to the encoder; another model gets the nominal hop",
                stacklevel=2,
            )
        return self.forward_with_times(input, input_lengths)[:2]

    def forward_with_times(
        self, speech: Tensor, speech_lengths: Tensor, *, match_frames: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features and their times.

        Args:
            speech: (B, N) samples; what lies beyond an utterance's end is ignored.
            speech_lengths: (B,) samples of each utterance.
            match_frames: choose the hops so that all utterances have equally many frames. To read
                their number waits for the device once. Otherwise the nominal hop is taken.

        Returns:
            log-mel features (B, T, n_mels), zero in padding; the (B,) frames of each utterance,
            all T with ``match_frames``; and the times (B, T) of the frames' centres in seconds,
            float64 (on MPS float32), NaN in padding. T is N // hop + 1 at the nominal hop.

        Raises:
            TooShortUttError: N is below :attr:`min_samples`.
            ValueError: several channels, an utterance shorter than :attr:`min_samples`, or with
                ``match_frames`` one of more than twice or less than half the mean duration (on
                CUDA: :func:`cape_plugins.checks.check_values`).
        """
        device, least, lengths = speech.device, self.min_samples, speech_lengths.to(speech.device)
        if speech.ndim != 2 or lengths.shape != speech.shape[:1]:
            raise ValueError(
                "frontend: cape_fbank takes audio of one channel, (B, N) samples, and (B,) "
                f"speech_lengths, got {tuple(speech.shape)} and {tuple(lengths.shape)}: mix the "
                "channels into one"
            )
        check_long_enough(speech.shape[1], least, "samples")
        check_values(
            lengths,
            lambda: (lengths >= least) & (lengths <= speech.shape[1]),
            f"speech_lengths must lie in [{least}, {speech.shape[1]}], what features need and "
            "speech has",
        )
        if match_frames:
            hops = self.matched_hops(lengths)  # (B,), and counts too
            counts = lengths // hops + 1
            frames, most = torch.stack(counts.aminmax()).tolist()
            index = _random_subset(counts, most, frames)  # (B, T)
            counts = torch.full_like(counts, frames)
        else:
            hops = torch.full_like(lengths, self.hop_length)
            counts, frames = lengths // hops + 1, speech.shape[1] // self.hop_length + 1
            index = torch.arange(frames, device=device)  # (T,)
        centres = index * hops[:, None]  # (B, T), in samples
        padding = torch.arange(frames, device=device) >= counts[:, None]
        times = (centres.to(widest(device)) / self.fs).masked_fill(padding, math.nan)
        features = self._features(speech, lengths, centres)  # (B, T, n_mels)
        return features.masked_fill(padding[..., None], 0.0), counts, times

    def matched_hops(self, lengths: Tensor) -> Tensor:
        """The hop of each utterance of a batch by its duration: (B,) samples → (B,) samples.

        Raises:
            ValueError: as :meth:`forward_with_times` with ``match_frames``.
        """
        ratio = lengths / lengths.double().mean()
        check_values(lengths, lambda: (ratio >= 1 / MAX_RATIO) & (ratio <= MAX_RATIO), SIMILAR)
        # integers throughout: a batch of equal durations must get the nominal hop exactly
        unit = self.hop_unit
        hops = self.hop_length * len(lengths) * lengths.long() // (lengths.sum() * unit) * unit
        return hops.clamp(min=unit)

    def _features(self, speech: Tensor, lengths: Tensor, centres: Tensor) -> Tensor:
        """Log-mel features of the windows around the centres: (B, T) → (B, T, n_mels)."""
        # bfloat16 has no FFT
        speech = speech.to(torch.promote_types(speech.dtype, torch.float32))
        device, last = speech.device, lengths[:, None] - 1
        # a frame may be centred right behind the last sample
        end = speech.shape[1] + self.win_length + self.window_start
        index = torch.arange(self.window_start, end, device=device)
        index = (last - (last - index.abs()).abs()).clamp(min=0)  # mirrored at both ends
        windows = speech.gather(1, index).unfold(1, self.win_length, 1)  # a view: (B, N+1, window)
        window = getattr(torch, f"{self.window}_window")
        weights = window(self.win_length, dtype=speech.dtype, device=device)
        utterance = torch.arange(len(speech), device=device)[:, None]
        power = []
        centres = centres.minimum(lengths[:, None])  # those in padding
        for part in centres.split(max(1, _FRAMES_AT_ONCE // len(speech)), dim=1):
            # (B, T, n_fft / 2 + 1)
            spectrum = torch.fft.rfft(windows[utterance, part] * weights, n=self.n_fft)
            power.append(spectrum.real.square() + spectrum.imag.square())
        # without lengths: ESPnet's mask of the padding is of order T²
        return self.logmel(torch.cat(power, dim=1).to(self.logmel.melmat.dtype))[0]


def sampling_rate(fs: int | str) -> int:
    """Hz, from a number or ESPnet's ``16k``; raise ValueError for what is neither."""
    try:
        rate = humanfriendly.parse_size(fs) if isinstance(fs, str) else fs
        check_count("fs", rate)
    except (humanfriendly.InvalidSize, ValueError):
        message = f"fs must be a sampling rate in Hz, such as 16000 or 16k, got {fs!r}"
        raise ValueError(message) from None
    return rate


def _random_subset(available: Tensor, most: int, count: int) -> Tensor:
    """Of 0 … available - 1 (< most), ``count`` different indices in order: (B,) → (B, count)."""
    index = torch.arange(most, device=available.device)
    luck = torch.rand(len(available), most, device=available.device)
    luck = luck.masked_fill(index >= available[:, None], math.inf)
    return luck.argsort(dim=1)[:, :count].sort(dim=1).values
