"""Checks of the audio that ESPnet's commands load, for ``model: cape_asr``: finite, at the rate fs.

ESPnet itself resamples nothing and skips every training step that NaN samples spoil.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from espnet2.train.dataset import ESPnetDataset
from espnet2.utils.get_default_kwargs import get_default_kwargs

from cape_plugins.espnet.frontend import sampling_rate

Utterances = Collection[tuple[str, dict[str, Any]]]


class CheckedCollate:
    """ESPnet's collate function after a look at the audio: the one place that has all names.

    Args:
        collate: ESPnet's.
        data: (path, name, type) of the data, the training's and validation's at first.
        rate: Hz that the frontend expects; None if it does not tell.

    Raises:
        ValueError: samples that are NaN or infinite; in the first batch, another sampling rate.
    """

    def __init__(
        self,
        collate: Callable[[Utterances], Any],
        data: Sequence[Sequence[str]],
        rate: int | None,
    ) -> None:
        self.collate = collate
        self.data = data
        self.rate = rate

    def __call__(self, utterances: Utterances) -> Any:
        """Check, then collate."""
        speech = [(name, fields["speech"]) for name, fields in utterances if "speech" in fields]
        for name, samples in speech:
            if not np.isfinite(samples).all():
                raise ValueError(
                    f"utterance {name} has samples that are NaN or infinite: repair its audio, or "
                    "remove it from the data"
                )
        if self.rate is not None and speech:
            check_rate(speech[0][0], self.data, self.rate)
            self.rate = None  # ESPnet itself wants the same rate from file to file
        return self.collate(utterances)


def check_rate(utterance: str, data: Sequence[Sequence[str]], expected: int) -> None:
    """Raise ValueError if an utterance's audio, read as ESPnet does, has another sampling rate."""
    for path, name, kind in data:
        if name != "speech" or not Path(path).is_file():
            continue
        reader = ESPnetDataset([(path, name, kind)]).loader_dict[name]
        if utterance not in reader.keys():  # noqa: SIM118 - `in` would read the audio
            continue
        reader[utterance]
        found = getattr(reader, "rate", expected)  # features have none
        if found not in (None, expected):
            raise ValueError(
                f"utterance {utterance} in {path} has {found} Hz, the frontend expects "
                f"{expected} Hz: set frontend_conf fs: {found}, or resample the audio"
            )


def check_audio_in(asr_task: Any) -> None:
    """Let an ASRTask check the audio of ``model: cape_asr``, in asr_inference too; idempotent."""
    build = asr_task.build_collate_fn.__func__
    if hasattr(build, "checks_audio"):
        return
    stream = asr_task.build_streaming_iterator.__func__

    def build_collate_fn(cls: Any, args: argparse.Namespace, train: bool) -> Any:
        collate = build(cls, args, train)
        if getattr(args, "model", None) != "cape_asr":
            return collate
        parts = [f"{part}_data_path_and_name_and_type" for part in ("train", "valid")]
        data = [one for part in parts for one in getattr(args, part, None) or ()]
        return CheckedCollate(collate, data, _expected_rate(args, asr_task.__module__))

    def build_streaming_iterator(
        cls: Any,
        data_path_and_name_and_type: Sequence[Sequence[str]],
        preprocess_fn: Any,
        collate_fn: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        data = data_path_and_name_and_type
        if isinstance(collate_fn, CheckedCollate):
            collate_fn.data = data  # asr_inference has other files than the training
        return stream(cls, data, preprocess_fn, collate_fn, *rest, **options)

    build_collate_fn.checks_audio = True  # type: ignore[attr-defined]
    asr_task.build_collate_fn = classmethod(build_collate_fn)
    asr_task.build_streaming_iterator = classmethod(build_streaming_iterator)


def _expected_rate(args: argparse.Namespace, task: str) -> int | None:
    if args.input_size is not None or getattr(args, "allow_multi_rates", False):
        return None
    frontend = sys.modules[task].frontend_choices.get_class(args.frontend)
    fs = {**get_default_kwargs(frontend), **(args.frontend_conf or {})}.get("fs")
    return None if fs is None else sampling_rate(fs)
