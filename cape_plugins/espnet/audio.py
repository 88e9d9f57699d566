"""Checks of the audio that ESPnet's commands load for ``model: cape_asr``; errors name utterances.

ESPnet itself resamples nothing, and skips every training step that NaN samples spoil.
"""

import argparse
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from espnet2.train.dataset import ESPnetDataset

from cape_plugins.espnet.frontend import MAX_RATIO, SIMILAR, CapeFbank, sampling_rate

Utterances = Collection[tuple[str, dict[str, Any]]]
_REPAIR = "repair its audio, or remove it from the data"


@dataclass
class CheckedCollate:
    """Checks the audio, then calls ESPnet's collate function.

    Only a collate function knows the utterances' names.

    Attributes:
        collate: ESPnet's.
        data: (path, name, type) of each list, at first the training's and validation's.
        rate: Hz that the frontend expects; None if it does not tell.
        frontend: ``cape_fbank``, whose limits hold, or None.
        train: whether ``cape_fbank`` matches hops.
        picks: whether the frontend is ESPnet's, which takes one of several channels.
        streaming: whether this is collect-stats or recognition. There the rate of each file is
            checked. In training ESPnet compares all files with the first, and logs the one that
            differs.
        may_be_short: whether audio without a frame is left to asr_inference.
        readers: ESPnet's, of the data.
    """

    collate: Callable[[Utterances], Any]
    data: Sequence[Sequence[str]]
    rate: int | None
    frontend: CapeFbank | None
    train: bool
    picks: bool = False
    streaming: bool = False
    may_be_short: bool = False
    readers: dict[str, Any] = field(default_factory=dict)

    def __call__(self, utterances: Utterances) -> Any:
        """Check, then collate.

        Raises:
            ValueError: an utterance's samples, channels, duration or sampling rate do not fit.
        """
        speech = {name: fields["speech"] for name, fields in utterances}
        mean = float(np.mean([len(samples) for samples in speech.values()]))
        fewest = min(samples.shape[1:] for samples in speech.values())
        for name, samples in speech.items():
            if fault := self._fault(samples, mean, fewest):
                raise ValueError(f"utterance {name} has {fault}")
            self._check_rate(name)
            if self.picks and samples.ndim > 1:
                logging.warning(
                    f"utterance {name} has {samples.shape[1]} channels: frontend: default takes "
                    "one at random in training, the first in evaluation, unless it beamforms"
                )
                self.picks = False  # said once
        return self.collate(utterances)

    def _fault(self, samples: np.ndarray, mean: float, fewest: tuple[int, ...]) -> str:
        """What is wrong with an utterance of a batch, of a mean length and a number of channels."""
        least = 1 if self.frontend is None else self.frontend.min_samples
        if self.frontend is not None and samples.ndim > 1:
            return f"{samples.shape[1]} channels, and frontend: cape_fbank takes one: {_REPAIR}"
        if samples.shape[1:] != fewest:
            fewer = fewest[0] if fewest else 1
            return f"{samples.shape[1]} channels, others of its batch {fewer}: {_REPAIR}"
        if len(samples) < least and not self.may_be_short:
            return f"{len(samples)} samples, and features need {least}: {_REPAIR}"
        if not np.isfinite(samples).all():
            return f"samples that are NaN or infinite: {_REPAIR}"
        similar = mean / MAX_RATIO <= len(samples) <= MAX_RATIO * mean
        if self.train and self.frontend is not None and not similar:
            return f"{len(samples)} samples, its batch {mean:.0f} on average: {SIMILAR}"
        return ""

    def _check_rate(self, name: str) -> None:
        for path, key, kind in self.data if self.rate is not None else ():
            if key != "speech" or not Path(path).is_file():
                continue
            if path not in self.readers:
                self.readers[path] = ESPnetDataset([(path, key, kind)]).loader_dict[key]
            found = _rate(self.readers[path], kind, name)
            if found not in (None, self.rate):
                raise ValueError(
                    f"utterance {name} in {path} has {found} Hz, the frontend expects {self.rate} "
                    f"Hz: set frontend_conf fs: {found}, or resample the audio"
                )
        if not self.streaming:
            self.rate = None


def _rate(reader: Any, kind: str, name: str) -> int | None:
    """Hz of an utterance's audio; None if the reader has not got it, or has features."""
    if name not in reader.keys():  # noqa: SIM118 - `in` would read the audio
        return None
    file = reader.loader.get_path(name) if kind == "sound" else ""
    if Path(file).is_file():  # neither a pipe nor an archive
        return int(soundfile.info(file).samplerate)
    reader.rate = None  # else it compares files itself, and names none
    reader[name]
    return getattr(reader, "rate", None)


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
        name, conf = args.frontend if args.input_size is None else None, args.frontend_conf or {}
        fs = conf.get("fs", 16000 if name in ("cape_fbank", "default") else None)
        if name is None or getattr(args, "allow_multi_rates", False):
            fs = None
        rate = None if fs is None else sampling_rate(fs)
        frontend = CapeFbank(**conf) if name == "cape_fbank" else None
        return CheckedCollate(collate, data, rate, frontend, train, picks=name == "default")

    def build_streaming_iterator(
        cls: Any, data_path_and_name_and_type: Any, *, collate_fn: Any, **options: Any
    ) -> Any:
        if isinstance(collate_fn, CheckedCollate):
            # asr_inference has other files than the training
            collate_fn.data, collate_fn.streaming = data_path_and_name_and_type, True
            collate_fn.may_be_short = bool(options.get("inference"))
        return stream(cls, data_path_and_name_and_type, collate_fn=collate_fn, **options)

    build_collate_fn.checks_audio = True  # type: ignore[attr-defined]
    asr_task.build_collate_fn = classmethod(build_collate_fn)
    asr_task.build_streaming_iterator = classmethod(build_streaming_iterator)
