"""The frontend ``cape_fbank``: log-mel features that say when each frame is.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2 (features; padding-free training).
"""

import math
import warnings
from collections.abc import Sequence

import humanfriendly
import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.layers.log_mel import LogMel
from torch import Tensor

from cape_plugins.espnet.seconds import TooShortUttError
from cape_plugins.positions import is_number, widest

WINDOW_SECONDS = 0.025
HOP_SECONDS = 0.010
_FRAMES_AT_ONCE = 2**15  # bounds the memory of windows and spectra


class AudioTooShortError(ValueError, TooShortUttError):
    """Audio without a single feature frame; asr_inference then writes an empty result."""

    def __init__(self, message: str, actual_size: int, limit: int) -> None:
        TooShortUttError.__init__(self, message, actual_size, limit)


class CapeFbank(AbsFrontend):
    """Log-mel features with timestamps; in padding-free training, as many frames per utterance.

    Put it into a recipe as ``frontend: cape_fbank``, beside ``model: cape_asr``; the arguments
    are ``frontend_conf``, named as in ESPnet's default frontend, whose features these are: frame i
    is centred at sample i · hop, and the signal is mirrored at its ends (each utterance's own
    ends, so that padding changes nothing).

    With the hop matched to the batch, an utterance of L samples takes the hop
    ``hop_length`` · L / mean(L), made an integer: all then have about the frames that the mean
    duration has at ``hop_length``. Surplus frames are dropped, uniformly at random.

    Args:
        fs: sampling rate in Hz, also as ``16k``. Audio at another rate cannot be told from the
            samples; ``iterator_type: task`` looks into the WAV files.
        n_fft: points of the Fourier transform; None is the power of two that holds the window.
        win_length: samples of the window; None is 25 ms (section 4.2).
        hop_length: samples of the nominal hop; None is 10 ms (section 4.2). May be set later, for
            a sweep of hops in evaluation.
        window: a window of torch, such as ``hann`` (ESPnet's default) or ``hamming`` (the
            authors').
        n_mels: channels, 80 in the paper.
        fmin, fmax: range of the filters in Hz; None is 0 and fs / 2.
        htk: the HTK formula of the mel scale, not Slaney's.
        hop_unit: matched hops are whole ``samples``, or whole ``milliseconds`` as in the authors'
            code, which leaves more frames to drop.
        hop_rounding: ``floor``, as in the authors' code, or ``round``.
        min_hop_ms, max_hop_ms: a matched hop outside is an error, for then the batch mixes short
            and long utterances.

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
        fmin: float | None = None,
        fmax: float | None = None,
        htk: bool = False,
        hop_unit: str = "samples",
        hop_rounding: str = "floor",
        min_hop_ms: float = 5.0,
        max_hop_ms: float = 20.0,
    ) -> None:
        super().__init__()
        self.fs = sampling_rate(fs)
        self.win_length = round(WINDOW_SECONDS * self.fs) if win_length is None else win_length
        _check_count("win_length", self.win_length)
        self.n_fft = 2 ** math.ceil(math.log2(self.win_length)) if n_fft is None else n_fft
        _check_count("n_fft", self.n_fft)
        if self.n_fft < self.win_length:
            raise ValueError(f"n_fft must be ≥ win_length={self.win_length}, got {n_fft}")
        self.hop_length = round(HOP_SECONDS * self.fs) if hop_length is None else hop_length
        _check_count("hop_length", self.hop_length)
        _check_count("n_mels", n_mels)
        low = 0 if fmin is None else fmin
        high = self.fs / 2 if fmax is None else fmax
        if not (is_number(low) and is_number(high) and 0 <= low < high <= self.fs / 2):
            raise ValueError(
                f"the mel filters must lie in 0 ≤ fmin < fmax ≤ fs / 2 = {self.fs / 2:g} Hz, "
                f"got fmin={fmin}, fmax={fmax}"
            )
        if not isinstance(window, str) or not hasattr(torch, f"{window}_window"):
            raise ValueError(f"window must be one of torch's, such as hann, got {window!r}")
        for name, value, choices in (
            ("hop_unit", hop_unit, ("samples", "milliseconds")),
            ("hop_rounding", hop_rounding, ("floor", "round")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if hop_unit == "milliseconds" and self.fs % 1000:
            raise ValueError(
                f"hop_unit: milliseconds needs fs divisible by 1000, got {self.fs} Hz: "
                "use hop_unit: samples"
            )
        nominal = 1000 * self.frame_shift
        limits = (min_hop_ms, max_hop_ms)
        if not (all(map(is_number, limits)) and 0 < min_hop_ms <= nominal <= max_hop_ms):
            raise ValueError(
                f"0 < min_hop_ms ≤ the nominal hop of {nominal:g} ms ≤ max_hop_ms must hold, "
                f"got {min_hop_ms!r} and {max_hop_ms!r}"
            )
        self.window = window
        self.hop_unit = hop_unit
        self.hop_rounding = hop_rounding
        self.min_hop_ms = min_hop_ms
        self.max_hop_ms = max_hop_ms
        self.logmel = LogMel(
            fs=self.fs, n_fft=self.n_fft, n_mels=n_mels, fmin=low, fmax=high, htk=htk
        )
        self._warned = False

    def output_size(self) -> int:
        """Feature channels."""
        return self.logmel.melmat.shape[1]

    @property
    def frame_shift(self) -> float:
        """Seconds between frames at the nominal hop; the encoder's ``frame_shift``."""
        return self.hop_length / self.fs

    @property
    def min_samples(self) -> int:
        """Samples of the shortest utterance that has features: it fills half a window."""
        return max(-self._window_start, self.win_length - 1 + self._window_start) + 1

    @property
    def max_duration_ratio(self) -> float:
        """With the longest utterance at most so many times the shortest, no hop is out of range."""
        nominal = 1000 * self.frame_shift
        return min(nominal / self.min_hop_ms, self.max_hop_ms / nominal)

    @property
    def _window_start(self) -> int:
        """First sample of a window, seen from the frame's centre; where torch.stft has it."""
        return (self.n_fft - self.win_length) // 2 - self.n_fft // 2

    def forward(self, input: Tensor, input_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features at the nominal hop, ESPnet's interface (collect-stats, stock models).

        Args and errors: as :meth:`forward_with_times`.

        Returns:
            (B, T, n_mels) and the (B,) frames of each utterance.
        """
        if self.training and torch.is_grad_enabled() and not self._warned:
            self._warned = True
            warnings.warn(
                "cape_fbank matches the hop to the batch only with model: cape_asr, which passes "
                "the timestamps on; another model gets the nominal hop",
                stacklevel=2,
            )
        features, lengths, _ = self.forward_with_times(input, input_lengths)
        return features, lengths

    def forward_with_times(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        *,
        match_frames: bool = False,
        names: Sequence[str] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features and when they are.

        Args:
            speech: (B, N) samples; what lies beyond an utterance's end is ignored.
            speech_lengths: (B,) samples of each utterance.
            match_frames: choose the hops so that all utterances have equally many frames, for
                training without padding. Otherwise the nominal hop, for evaluation.
            names: of the utterances, for messages.

        Returns:
            log-mel features (B, T, n_mels), zero in padding; the (B,) frames of each utterance,
            all T with ``match_frames``; and the times (B, T) of the frames' centres in seconds,
            float64 (on MPS float32), NaN in padding.

        Raises:
            ValueError: shapes that do not fit; several channels; an utterance that is not
                finite, or (AudioTooShortError) empty or shorter than :attr:`min_samples`; a
                matched hop out of range.
        """
        samples = self._check(speech, speech_lengths, names)
        hops = [self.hop_length] * len(samples)
        if match_frames:
            hops = self.matched_hops(samples, names)
        counts = [length // hop + 1 for length, hop in zip(samples, hops, strict=True)]

        device = speech.device
        available = torch.tensor(counts, device=device)
        frames = min(counts) if match_frames else max(counts)
        if match_frames:
            index = _random_subset(available, max(counts), frames)
            lengths = torch.full_like(available, frames)
        else:
            index = torch.arange(frames, device=device).expand(len(counts), frames)
            lengths = available
        centres = index * torch.tensor(hops, device=device)[:, None]  # (B, T), in samples
        padding = torch.arange(frames, device=device) >= lengths[:, None]
        times = (centres.to(widest(device)) / self.fs).masked_fill(padding, math.nan)
        features = self._features(speech, speech_lengths, centres)
        return features.masked_fill(padding[..., None], 0.0), lengths, times

    def matched_hops(self, samples: list[int], names: Sequence[str] | None = None) -> list[int]:
        """The hop in samples of each utterance of a batch, by its duration in samples.

        ``names`` are those of the utterances, for messages.

        Raises:
            ValueError: a hop lies outside ``min_hop_ms`` … ``max_hop_ms``.
        """
        unit = self.fs // 1000 if self.hop_unit == "milliseconds" else 1
        total = sum(samples) * unit
        hops = []
        for index, length in enumerate(samples):
            # integers throughout: a batch of equal durations must get the nominal hop exactly
            ideal = self.hop_length * length * len(samples)
            whole = (
                ideal // total
                if self.hop_rounding == "floor"
                else (2 * ideal + total) // (2 * total)
            )
            hop = 1000 * whole * unit / self.fs
            if not self.min_hop_ms <= hop <= self.max_hop_ms:
                raise ValueError(
                    f"{which(index, names)} lasts {length / self.fs:.2f} s, the mean is "
                    f"{sum(samples) / len(samples) / self.fs:.2f} s: its hop would be {hop:g} ms, "
                    f"allowed are {self.min_hop_ms:g} … {self.max_hop_ms:g} ms (min_hop_ms, "
                    "max_hop_ms). Batch utterances of similar duration: iterator_type: task"
                )
            hops.append(whole * unit)
        return hops

    def _check(self, speech: Tensor, lengths: Tensor, names: Sequence[str] | None) -> list[int]:
        """The lengths, if the audio is right."""
        if speech.ndim != 2:
            raise ValueError(
                f"cape_fbank takes one channel: speech must be (B, N), got {tuple(speech.shape)}"
            )
        if not speech.is_floating_point():
            raise ValueError(f"speech must be floating-point samples, got {speech.dtype}")
        batch, longest = speech.shape
        if lengths.shape != (batch,):
            raise ValueError(f"speech_lengths must be ({batch},), got {tuple(lengths.shape)}")
        samples = [int(length) for length in lengths.tolist()]
        for index, length in enumerate(samples):
            name = which(index, names)
            if not 0 <= length <= longest:
                raise ValueError(f"{name} has length {length}, but speech is {(batch, longest)}")
            if length < self.min_samples:
                what = "too short" if length else "empty audio"
                raise AudioTooShortError(
                    f"{name} is {what}: {length} samples, and features need {self.min_samples} "
                    f"({1000 * self.min_samples / self.fs:g} ms at fs: {self.fs}): remove it from "
                    "the data",
                    length,
                    self.min_samples,
                )
        check_finite(speech, lengths, names)
        return samples

    def _features(self, speech: Tensor, speech_lengths: Tensor, centres: Tensor) -> Tensor:
        """Log-mel features of the windows around the centres: (B, T) → (B, T, n_mels)."""
        # bfloat16 has no FFT
        speech = speech.to(torch.promote_types(speech.dtype, torch.float32))
        device = speech.device
        last = speech_lengths.to(device)[:, None] - 1
        before, after = -self._window_start, self.win_length - 1 + self._window_start
        index = torch.arange(-before, speech.shape[1] + after, device=device)
        index = (last - (last - index.abs()).abs()).clamp(min=0)  # mirrored at both ends
        windows = speech.gather(1, index).unfold(1, self.win_length, 1)  # a view: (B, N, window)
        shape = getattr(torch, f"{self.window}_window")(
            self.win_length, dtype=speech.dtype, device=device
        )
        utterance = torch.arange(len(speech), device=device)[:, None]
        power = []
        for part in centres.minimum(last).split(max(1, _FRAMES_AT_ONCE // len(speech)), dim=1):
            spectrum = torch.fft.rfft(windows[utterance, part] * shape, n=self.n_fft)
            power.append(spectrum.real.square() + spectrum.imag.square())
        # without lengths: ESPnet's mask of the padding takes time and memory of order T²
        features, _ = self.logmel(torch.cat(power, dim=1).to(self.logmel.melmat.dtype))
        return features


def check_finite(speech: Tensor, lengths: Tensor, names: Sequence[str] | None = None) -> None:
    """Raise ValueError if an utterance has samples (B, N), or features, that are not finite."""
    beyond = (
        torch.arange(speech.shape[1], device=speech.device) >= lengths.to(speech.device)[:, None]
    )
    finite = speech.isfinite().flatten(2).all(dim=2) if speech.ndim > 2 else speech.isfinite()
    # a wait for the device, as in ESPnet's own models, which slice by the longest length
    for index, good in enumerate((finite | beyond).all(dim=1).tolist()):
        if not good:
            raise ValueError(
                f"{which(index, names)} has samples that are NaN or infinite: repair its audio, or "
                "remove it from the data"
            )


def which(index: int, names: Sequence[str] | None) -> str:
    """An utterance of a batch, for messages: by its name if there is one."""
    return f"utterance {index} of the batch" if names is None else f"utterance {names[index]}"


def sampling_rate(fs: int | str) -> int:
    """A sampling rate in Hz, from a number or ESPnet's ``16k``.

    Raises:
        ValueError: it is neither, or not positive.
    """
    rate: object = fs
    if isinstance(fs, str):
        try:
            rate = humanfriendly.parse_size(fs)
        except humanfriendly.InvalidSize:
            rate = None
    if not isinstance(rate, int) or isinstance(rate, bool) or rate < 1:
        raise ValueError(f"fs must be a sampling rate in Hz, such as 16000 or 16k, got {fs!r}")
    return rate


def _random_subset(available: Tensor, most: int, count: int) -> Tensor:
    """Of 0 … available - 1 (< most), ``count`` different indices in order: (B,) → (B, count)."""
    index = torch.arange(most, device=available.device)
    luck = torch.rand(len(available), len(index), device=available.device)
    luck = luck.masked_fill(index >= available[:, None], math.inf)
    return luck.argsort(dim=1)[:, :count].sort(dim=1).values


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}")
