"""Batches for training without padding, made anew in every epoch: ``iterator_type: task``.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2: durations are perturbed, utterances
sorted by them and grouped, so that each batch holds utterances of similar, not equal, duration.
"""

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from espnet2.fileio.read_text import load_num_sequence_text
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.samplers.abs_sampler import AbsSampler

from cape_plugins.espnet.paper.frontend import MAX_RATIO

DURATION_JITTER = 0.15  # durations are multiplied by U(0.85, 1.15); section 4.2


@dataclass(frozen=True, eq=False)
class PerEpochBatches(AbsSampler):
    """The batches of each pass over the data, longest utterances sorted first (as the authors).

    The groups of consecutive utterances come in random order.

    Attributes:
        durations: utterance → duration in samples (or in feature frames).
        bins: the most that the durations of a batch may sum up to. An utterance longer than that
            is a batch of its own.
        seed: with the number of the pass, the only source of randomness.
        ranks: processes that share each batch. None goes empty, so a batch may exceed ``bins`` to
            hold one utterance for each; utterances left over, fewer than ``ranks``, are left out
            of that pass.
        rank: this process.
        max_ratio: the longest utterance of a batch is at most so many times the shortest.

    Raises:
        ValueError: there are fewer utterances than ranks, or ``bins`` is below 1.
    """

    durations: dict[str, int]
    bins: int
    seed: int = 0
    ranks: int = 1
    rank: int = 0
    max_ratio: float = math.inf

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ValueError(f"batch_bins must be ≥ 1, got {self.bins}")
        if (count := len(self.durations)) < self.ranks:
            raise ValueError(f"{count} utterances cannot be shared by {self.ranks} processes")

    def generate(self, seed: int) -> list[list[str]]:
        """This rank's share of pass ``seed``, which ESPnet makes of its seed and the epoch."""
        return [batch[self.rank :: self.ranks] for batch in self.batches(seed)]

    def __len__(self) -> int:
        return len(self.batches(0))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.generate(0))

    def batches(self, number: int) -> list[list[str]]:
        """The batches of pass ``number`` ≥ 0; every rank gets the same, in the same order."""
        keys, durations = list(self.durations), np.array(list(self.durations.values()))
        random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        jitter = random.uniform(1 - DURATION_JITTER, 1 + DURATION_JITTER, len(keys))
        order = np.argsort(-durations * jitter, kind="stable")
        batches: list[list[str]] = [[]]
        total, shortest, longest = 0, math.inf, 0
        for index in order:
            duration = durations[index]
            total += duration
            shortest, longest = min(shortest, duration), max(longest, duration)
            full = total > self.bins or longest > self.max_ratio * shortest
            if full and len(batches[-1]) >= self.ranks:
                batches.append([])
                total = shortest = longest = duration
            batches[-1].append(keys[index])
        if len(batches[-1]) < self.ranks:
            batches.pop()
        random.shuffle(batches)
        return batches


def build_task_iter_factory(
    cls: Any, args: argparse.Namespace, iter_options: Any, mode: str
) -> AbsIterFactory:
    """What ``iterator_type: task`` means for ESPnet's ASRTask, as a class method of it.

    Training: :class:`PerEpochBatches`, whose ``batch_bins`` is in the unit of the speech shape
    file (samples; text does not count); ``min_batch_size`` and ``drop_last_iter`` have no effect.
    Validation and attention plots: ESPnet's ordinary batches.

    Raises:
        ValueError: another batch type; shape files that do not fit.
    """
    if mode != "train":
        return cls.build_sequence_iter_factory(args=args, iter_options=iter_options, mode=mode)
    if iter_options.batch_type not in ("length", "numel"):
        raise ValueError(
            "iterator_type: task needs batch_type: length, and batch_bins in samples of audio, "
            f"got batch_type: {iter_options.batch_type}"
        )
    durations = read_durations(iter_options.shape_files)
    group = torch.distributed if iter_options.distributed else None
    passes = PerEpochBatches(
        durations,
        iter_options.batch_bins,
        seed=args.seed,
        ranks=group.get_world_size() if group else 1,
        rank=group.get_rank() if group else 0,
        max_ratio=MAX_RATIO if args.frontend == "cape_fbank" else math.inf,
    )
    logging.info(f"{len(passes)} batches made anew in each pass over {len(durations)} utterances")
    return SequenceIterFactory(
        # its keys: those of the shape file, which may be a part of wav.scp
        cls.build_dataset(args, iter_options, set(durations)),
        passes,
        num_iters_per_epoch=iter_options.num_iters_per_epoch,
        seed=args.seed,
        num_workers=args.num_workers,
        collate_fn=iter_options.collate_fn,
        pin_memory=args.ngpu > 0,
    )


def read_durations(shape_files: Sequence[str]) -> dict[str, int]:
    """Utterance → duration, from the shape file of the speech (else from the first).

    Raises:
        ValueError: there is no file, or the files name different utterances.
    """
    if not shape_files:
        raise ValueError("iterator_type: task needs --train_shape_file, made by --collect_stats")
    speech = next((file for file in shape_files if "speech_shape" in file), shape_files[0])
    shapes = {file: load_num_sequence_text(file, loader_type="csv_int") for file in shape_files}
    durations = {key: shape[0] for key, shape in shapes[speech].items()}
    for file, others in shapes.items():
        if missing := others.keys() ^ durations.keys():
            key = min(missing)
            raise ValueError(f"{file} and {speech} name different utterances, such as {key}")
    return durations
