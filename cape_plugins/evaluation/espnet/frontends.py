"""What an evaluation needs to know about a frontend: its sampling rate, its hop, its limits."""

import argparse
from typing import Any

from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.asr.frontend.default import DefaultFrontend

from cape_plugins.espnet import model as asr_model
from cape_plugins.espnet.frontend import CapeFbank, sampling_rate
from cape_plugins.espnet.model import CapeASRModel, sampling_rate_of

HOP_LIMITS_MS = (5.0, 20.0)  # cape_fbank's defaults, for ESPnet's frontend, which has none


def rate_of(model: ESPnetASRModel, train_args: argparse.Namespace) -> int | None:
    """The sampling rate in Hz that a model was trained at; None if nothing tells.

    Raises:
        ValueError: the model takes features, not audio.
    """
    frontend = model.frontend
    if frontend is None:
        raise ValueError("it has no frontend: it takes features, and this command has audio")
    rate = sampling_rate_of(frontend)
    if rate is not None:
        return rate
    fs = (train_args.frontend_conf or {}).get("fs")
    return None if fs is None else sampling_rate(fs)


def min_samples(model: ESPnetASRModel) -> int:
    """Samples of the shortest audio that has features, as far as the frontend tells; ≥ 1."""
    return asr_model.min_samples(model.frontend)


def padding_changes_nothing(model: ESPnetASRModel) -> bool:
    """Whether an utterance gives the same result in a padded batch as alone.

    So it is with ``model: cape_asr`` and ``frontend: cape_fbank``. ESPnet's frontend mirrors the
    padded signal at its end instead of the utterance's own, its ``utterance_mvn`` counts padding
    in the variance, and its convolutions (202511) read a little of the padding.
    """
    return isinstance(model, CapeASRModel) and isinstance(model.frontend, CapeFbank)


def _hop_holder(model: ESPnetASRModel) -> Any:
    """What reads ``hop_length``; None if the frontend has none to set."""
    if isinstance(model.frontend, DefaultFrontend):
        return model.frontend.stft  # nothing reads that of the frontend itself
    return model.frontend if isinstance(model.frontend, CapeFbank) else None


def hop_of(model: ESPnetASRModel) -> int | None:
    """The hop in samples, or None if the frontend does not tell."""
    return getattr(_hop_holder(model), "hop_length", None)


def hop_samples(model: ESPnetASRModel, milliseconds: float) -> int:
    """A hop of the sweep in whole samples.

    Raises:
        ValueError: the frontend has no hop to set, or this one is out of its range.
    """
    if hop_of(model) is None:
        raise ValueError(
            f"--hops needs frontend: cape_fbank or default, not {type(model.frontend).__name__}"
        )
    frontend = model.frontend
    if isinstance(frontend, CapeFbank):
        rate, low, high = frontend.fs, frontend.min_hop_ms, frontend.max_hop_ms
    else:
        rate, (low, high) = int(frontend.logmel.mel_options["sr"]), HOP_LIMITS_MS
    if not low <= milliseconds <= high:
        raise ValueError(
            f"--hops must lie within {low:g} … {high:g} ms (frontend_conf min_hop_ms, "
            f"max_hop_ms), got {milliseconds:g}"
        )
    return round(milliseconds * rate / 1000)


def set_hop(model: ESPnetASRModel, samples: int) -> None:
    """Give the frontend another hop; ``model: cape_asr`` takes its timestamps from it."""
    _hop_holder(model).hop_length = samples
