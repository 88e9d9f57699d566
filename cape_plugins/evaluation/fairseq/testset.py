"""Binarised sentence pairs, in batches in which every sentence comes once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from tqdm import tqdm

from cape_plugins.evaluation import device
from cape_plugins.evaluation.fairseq.options import ModelOptions

_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Runtime(device.Runtime):
    """Where and how models run.

    Attributes:
        weights: dtype of the model's weights.
        batch_size: sentences in a batch, at most.
        max_tokens: tokens in a batch, padding included, at most.
        workers: processes that load data; 0 loads in this one.
    """

    weights: torch.dtype = torch.float32
    batch_size: int = 128
    max_tokens: int = 4096
    workers: int = 0

    @property
    def precision(self) -> str:
        """Its name in results."""
        amp = self.amp_dtype
        return _NAMES[self.weights] if amp is None else f"amp-{_NAMES[amp]}"

    def place(self, model: Any) -> Any:
        """The model on the device in its dtype; fairseq's generate does the same."""
        return model.to(self.weights).to(self.device)


def runtime(options: ModelOptions) -> Runtime:
    """How models are run.

    Raises:
        ValueError: no such device, or float16 on the CPU.
    """
    place = device.open_device(options.device)
    half = torch.bfloat16 if options.bf16 else torch.float16
    if place.type == "cpu" and half is torch.float16 and (options.fp16 or options.amp):
        raise ValueError("float16 is for GPUs: on the CPU give --bf16, with or without --amp")
    return Runtime(
        place,
        half if options.amp else None,
        half if (options.fp16 or options.bf16) and not options.amp else torch.float32,
        options.batch_size,
        options.max_tokens,
        options.workers,
    )


def dictionary_path(data: Path, language: str) -> Path:
    """Where fairseq-preprocess puts a dictionary."""
    return data / f"dict.{language}.txt"


def check_data(data: Path, subsets: list[str]) -> None:
    """Find out before any work whether binarised data are there.

    Raises:
        ValueError: the folder, a dictionary or a subset is missing.
    """
    if not data.is_dir():
        raise ValueError(f"no such data folder: {data}")
    if len(list(data.glob("dict.*.txt"))) < 2:
        raise ValueError(f"no dictionaries dict.*.txt in {data}: make it with fairseq-preprocess")
    there = sorted({path.name.split(".")[0] for path in data.glob("*.*-*.*.idx")})
    for subset in subsets:
        if not any(data.glob(f"{subset}.*-*.*")):
            raise ValueError(f"no subset {subset!r} in {data}: it has {', '.join(there) or 'none'}")


def open_subset(task: Any, subset: str, data: Path) -> Any:
    """fairseq's dataset of sentence pairs.

    Raises:
        ValueError: it is missing, empty, or has no references.
    """
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise ValueError(
            f"no subset {subset!r} in {data} for {task.cfg.source_lang}-{task.cfg.target_lang}, "
            f"which the checkpoint was trained on: {error}"
        ) from error
    dataset = task.dataset(subset)
    if len(dataset) == 0:
        raise ValueError(f"the subset {subset!r} in {data} is empty")
    if getattr(dataset, "tgt", None) is None:
        raise ValueError(f"the subset {subset!r} in {data} has no target side")
    return dataset


def check_lengths(loaded: Any, dataset: Any, runtime: Runtime) -> None:
    """Find out whether the model takes every sentence.

    Raises:
        ValueError: a sentence is longer than the model or a batch can be.
    """
    source, target = _max_positions(loaded)
    sides = ("source", dataset.src_sizes, source), ("target", dataset.tgt_sizes, target)
    for side, sizes, limit in sides:
        longest = int(sizes.argmax())
        what = f"sentence {longest} has {sizes[longest]} {side} tokens"
        if sizes[longest] > limit:
            raise ValueError(
                f"{what}, the model takes {limit}: give --max-positions {sizes[longest]} (not for "
                "abspos, whose table has no more), or leave out longer ones"
            )
        if sizes[longest] > runtime.max_tokens:
            raise ValueError(
                f"{what}, more than a batch: give --max-tokens {sizes[longest]} or more"
            )


def batches(loaded: Any, dataset: Any, runtime: Runtime, title: str) -> Iterator[Any]:
    """Batches on the device, with a progress bar on a terminal.

    Each sentence comes exactly once: fairseq-fixed (and fairseq since December 2022) drops the
    last sentences unless the multiple of batch sizes is 1.

    Raises:
        ValueError: a sentence is too long (before the first batch).
        RuntimeError: a sentence came twice or not at all (after the last).
    """
    check_lengths(loaded, dataset, runtime)
    iterator = loaded.task.get_batch_iterator(
        dataset=dataset,
        max_tokens=runtime.max_tokens,
        max_sentences=runtime.batch_size,
        max_positions=_max_positions(loaded),
        ignore_invalid_inputs=False,
        required_batch_size_multiple=1,
        num_workers=runtime.workers,
        disable_iterator_cache=True,
    ).next_epoch_itr(shuffle=False)
    seen: list[int] = []
    with tqdm(total=len(dataset), desc=title, unit=" sentences", disable=None, leave=False) as bar:
        for sample in iterator:
            if "net_input" not in sample:
                continue
            seen += sample["id"].tolist()
            yield utils.apply_to_sample(lambda tensor: tensor.to(runtime.device), sample)
            bar.update(len(sample["id"]))
    if sorted(seen) != list(range(len(dataset))):
        raise RuntimeError(
            f"{len(set(seen))} of {len(dataset)} sentences were evaluated, {len(seen)} times in all"
        )


def _max_positions(loaded: Any) -> tuple[int, int]:
    return utils.resolve_max_positions(loaded.task.max_positions(), loaded.model.max_positions())
