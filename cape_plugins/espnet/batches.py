"""Batches for training without padding, made anew in every epoch: ``iterator_type: task``.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2: durations are perturbed, utterances
sorted by them and grouped, so that each batch holds utterances of similar, not equal, duration.
"""

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from espnet2.fileio.read_text import load_num_sequence_text
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory

from cape_plugins.espnet.frontend import CapeFbank, sampling_rate

DURATION_JITTER = 0.15  # durations are multiplied by U(0.85, 1.15); section 4.2
BATCH_TYPES = ("length", "numel")


class PerEpochBatches:
    """The batches of each pass over the data; a pass is known by its number alone.

    Durations are perturbed and sorted, longest first (as the authors), then consecutive utterances
    grouped; the groups come in random order.

    Args:
        durations: utterance → duration in samples (or in feature frames).
        bins: the most that the durations of a batch may sum up to. An utterance longer than that
            is a batch of its own.
        seed: with the number of the pass, the only source of randomness.
        ranks: processes that share each batch. None goes empty, so a batch may exceed ``bins`` to
            hold one utterance for each; utterances left over, fewer than ``ranks``, are left out
            of that pass.
        min_batch_size: a batch may exceed ``bins`` to hold as many.
        max_ratio: the longest utterance of a rank's share is at most so many times the shortest.
        drop_last: leave out the last group, which may be small.

    Raises:
        ValueError: there are fewer utterances than ranks, or ``bins`` is below 1.
    """

    def __init__(
        self,
        durations: dict[str, int],
        bins: int,
        *,
        seed: int = 0,
        ranks: int = 1,
        min_batch_size: int = 1,
        max_ratio: float = math.inf,
        drop_last: bool = False,
    ) -> None:
        if bins < 1:
            raise ValueError(f"batch_bins must be ≥ 1, got {bins}")
        if len(durations) < ranks:
            raise ValueError(f"{len(durations)} utterances cannot be shared by {ranks} processes")
        self.keys = list(durations)
        self.durations = np.array(list(durations.values()), dtype=np.int64)
        self.bins = bins
        self.seed = seed
        self.ranks = ranks
        self.min_batch_size = min_batch_size
        self.max_ratio = max_ratio
        self.drop_last = drop_last

    def batches(self, number: int) -> list[list[str]]:
        """The batches of pass ``number`` ≥ 0; every rank gets the same, in the same order."""
        random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        jitter = random.uniform(1 - DURATION_JITTER, 1 + DURATION_JITTER, len(self.keys))
        order = np.argsort(-self.durations * jitter, kind="stable")
        ends = self._group(self.durations[order].tolist())
        starts = [0, *ends[:-1]]
        groups = [order[start:end] for start, end in zip(starts, ends, strict=True)]
        random.shuffle(groups)
        return [[self.keys[index] for index in group] for group in groups]

    def _group(self, durations: Sequence[int]) -> list[int]:
        """Where the groups of consecutive durations end."""
        ends = []
        start, total, shortest, longest = 0, 0, math.inf, 0
        for index, duration in enumerate(durations):
            size = index - start
            uneven = max(longest, duration) > self.max_ratio * min(shortest, duration)
            full = total + duration > self.bins and size >= self.min_batch_size
            if size >= self.ranks and (full or uneven):
                ends.append(index)
                start, total, shortest, longest = index, 0, math.inf, 0
            total += duration
            shortest, longest = min(shortest, duration), max(longest, duration)
        if len(durations) - start >= self.ranks:
            ends.append(len(durations))
        else:
            # too few for the ranks: take some from the group before, if it can spare them
            start_before = ends[-2] if len(ends) > 1 else 0
            if len(durations) - start_before >= 2 * self.ranks:
                ends[-1:] = [len(durations) - self.ranks, len(durations)]
        if self.drop_last and len(ends) > 1:
            ends.pop()
        return ends


class PerEpochIterFactory(AbsIterFactory):
    """ESPnet's loader over the batches of an epoch, this rank's share of them.

    Args:
        dataset: ESPnet's dataset of all utterances: any may come to any rank.
        passes: makes the batches.
        num_iters_per_epoch: batches of an epoch; the next epoch goes on where it ended, in the
            same pass. None: an epoch is a pass.
        rank: this process.
        num_workers, collate_fn, pin_memory: of the loader.
    """

    def __init__(
        self,
        dataset: Any,
        passes: PerEpochBatches,
        *,
        num_iters_per_epoch: int | None = None,
        rank: int = 0,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
    ) -> None:
        self.dataset = dataset
        self.passes = passes
        self.num_iters_per_epoch = num_iters_per_epoch
        self.rank = rank
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self._pass_sizes: list[int] = []

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> Iterator:
        """The loader of an epoch ≥ 1; depends on nothing else, so that resuming repeats nothing.

        ``shuffle`` is part of ESPnet's interface; the order is random anyway.
        """
        share = [batch[self.rank :: self.passes.ranks] for batch in self.batches(epoch)]
        return SequenceIterFactory(
            dataset=self.dataset,
            batches=share,
            seed=self.passes.seed,
            shuffle=False,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
            pin_memory=self.pin_memory,
        ).build_iter(epoch)

    def batches(self, epoch: int) -> list[list[str]]:
        """The batches of an epoch ≥ 1, before they are shared among the ranks."""
        if self.num_iters_per_epoch is None:
            return self.passes.batches(epoch - 1)
        # passes differ in their number of batches: count through those before
        skip = (epoch - 1) * self.num_iters_per_epoch
        number = 0
        while skip >= self._size_of(number):
            skip -= self._size_of(number)
            number += 1
        batches: list[list[str]] = self.passes.batches(number)[skip:]
        while len(batches) < self.num_iters_per_epoch:
            number += 1
            batches += self.passes.batches(number)
        return batches[: self.num_iters_per_epoch]

    def _size_of(self, number: int) -> int:
        while len(self._pass_sizes) <= number:
            self._pass_sizes.append(len(self.passes.batches(len(self._pass_sizes))))
        return self._pass_sizes[number]


def build_task_iter_factory(
    cls: Any, args: argparse.Namespace, iter_options: Any, mode: str
) -> AbsIterFactory:
    """What ``iterator_type: task`` means for ESPnet's ASRTask, as a class method of it.

    Training: :class:`PerEpochBatches`. ``batch_bins`` is the sum of durations of a batch, over
    all processes, in the unit of the speech shape file (samples; text does not count), with
    ``batch_type: length`` (or ``numel``). Validation and attention plots: ESPnet's ordinary
    batches.

    Raises:
        ValueError: another batch type; shape files that do not fit; audio that is shorter than
            the frontend needs or has another sampling rate.
    """
    check_sampling_rate(args, iter_options.data_path_and_name_and_type)
    if mode != "train":
        return cls.build_sequence_iter_factory(args=args, iter_options=iter_options, mode=mode)
    if iter_options.batch_type not in BATCH_TYPES:
        raise ValueError(
            f"iterator_type: task needs batch_type: length, and batch_bins in samples of audio, "
            f"got batch_type: {iter_options.batch_type}"
        )
    durations = read_durations(iter_options.shape_files)
    max_ratio = math.inf
    if args.input_size is None and args.frontend == "cape_fbank":
        frontend = CapeFbank(**args.frontend_conf)
        max_ratio = frontend.max_duration_ratio
        check_durations(durations, frontend.min_samples)
    ranks, rank = 1, 0
    if iter_options.distributed:
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    passes = PerEpochBatches(
        durations,
        iter_options.batch_bins,
        seed=args.seed,
        ranks=ranks,
        min_batch_size=ranks if iter_options.distributed else args.min_batch_size,
        max_ratio=max_ratio,
        drop_last=args.drop_last_iter,
    )
    sizes = [len(batch) for batch in passes.batches(0)]
    logging.info(
        f"[{mode}] batches made anew in each pass over {len(durations)} utterances; the first has "
        f"N-batch={len(sizes)}, mean={np.mean(sizes):.1f}, min={min(sizes)}, max={max(sizes)}"
    )
    return PerEpochIterFactory(
        # its keys: those of the shape file, which may be a part of wav.scp
        cls.build_dataset(args, iter_options, set(durations)),
        passes,
        num_iters_per_epoch=iter_options.num_iters_per_epoch,
        rank=rank,
        num_workers=args.num_workers,
        collate_fn=iter_options.collate_fn,
        pin_memory=args.ngpu > 0,
    )


def read_durations(shape_files: Sequence[str]) -> dict[str, int]:
    """Utterance → duration, from the shape file of the speech (else from the first).

    Raises:
        ValueError: there is no file, it is empty, or the files name different utterances.
    """
    if not shape_files:
        raise ValueError("iterator_type: task needs --train_shape_file, made by --collect_stats")
    speech = next((file for file in shape_files if "speech_shape" in file), shape_files[0])
    shapes = {file: load_num_sequence_text(file, loader_type="csv_int") for file in shape_files}
    durations = {key: shape[0] for key, shape in shapes[speech].items()}
    if not durations:
        raise ValueError(f"{speech} names no utterance")
    for file, others in shapes.items():
        if others.keys() != durations.keys():
            key = next(iter(others.keys() ^ durations.keys()))
            raise ValueError(f"{file} and {speech} name different utterances, such as {key}")
    return durations


def check_durations(durations: dict[str, int], min_samples: int) -> None:
    """Raise ValueError if an utterance is shorter than the frontend needs."""
    short = [key for key, samples in durations.items() if samples < min_samples]
    if short:
        raise ValueError(
            f"{len(short)} utterances are shorter than the {min_samples} samples that features "
            f"need, such as {short[0]} with {durations[short[0]]}: remove them from the data"
        )


def check_sampling_rate(args: argparse.Namespace, data: Sequence[tuple[str, str, str]]) -> None:
    """Raise ValueError if the first WAV file's rate is not the frontend's.

    ESPnet itself checks that all files have the same rate, and resamples nothing. Looks only
    where it can: at ``sound`` data in plain files, for frontends that know their rate.
    """
    if args.input_size is not None or args.frontend not in ("cape_fbank", "default"):
        return
    expected = sampling_rate(args.frontend_conf.get("fs", 16000))
    for path, name, kind in data:
        if name != "speech" or kind != "sound":
            continue
        with open(path, encoding="utf-8") as scp:
            utterance, _, file = scp.readline().strip().partition(" ")
        if not Path(file).is_file():  # a pipe, an archive
            continue
        found = soundfile.info(file).samplerate
        if found != expected:
            raise ValueError(
                f"{utterance} in {path} has {found} Hz, the frontend expects {expected} Hz: "
                f"resample the audio, or set frontend_conf fs: {found}"
            )
