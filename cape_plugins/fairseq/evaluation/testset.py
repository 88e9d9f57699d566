"""Binarised sentence pairs, in batches in which every sentence comes once."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from tqdm import tqdm


@dataclass(frozen=True)
class Runtime:
    """How models are run.

    Attributes:
        device: where.
        weights: dtype of the model's weights.
        autocast: dtype of mixed precision; None without.
        batch_size: sentences in a batch, at most.
        max_tokens: tokens in a batch, padding included, at most.
        workers: processes that load data; 0 loads in this one.
    """

    device: torch.device
    weights: torch.dtype
    autocast: torch.dtype | None
    batch_size: int
    max_tokens: int
    workers: int

    @property
    def precision(self) -> str:
        """Its name in results."""
        names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
        return names[self.weights] if self.autocast is None else f"amp-{names[self.autocast]}"

    def place(self, model: Any) -> Any:
        """The model on the device in its dtype; fairseq's generate does the same."""
        return model.to(self.weights).to(self.device)

    def context(self) -> AbstractContextManager[Any]:
        """Mixed precision, or nothing."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)


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
    limits = _max_positions(loaded)
    for side, sizes, limit in zip(
        ("source", "target"), (dataset.src_sizes, dataset.tgt_sizes), limits, strict=True
    ):
        longest = int(sizes.argmax())
        if sizes[longest] > limit:
            raise ValueError(
                f"sentence {longest} has {sizes[longest]} {side} tokens, the model takes "
                f"{limit}: give --max-positions {sizes.max()} (not for abspos, whose table has "
                f"no more), or leave out longer ones"
            )
        if sizes[longest] > runtime.max_tokens:
            raise ValueError(
                f"sentence {longest} has {sizes[longest]} {side} tokens, more than a batch: give "
                f"--max-tokens {sizes[longest]} or more"
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
