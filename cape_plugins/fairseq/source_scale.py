"""The source scale α, counted in the training set before training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.utils import split_paths


@contextmanager
def loaded(task: Any, split: str, epoch: int = 1) -> Iterator[Any]:
    """A task's data set with all its parts (train, train1, …); the trainer will load its own."""
    before = dict(task.datasets)
    try:
        task.load_dataset(split, epoch=epoch, combine=True)
        yield task.dataset(split)
    finally:
        task.datasets = before


def count_source_scale(task: Any, split: str = "train") -> float:
    """Count α, target / source tokens of a task's training set, with one EOS per sentence.

    Each shard (``data-bin1:data-bin2``) counts once. Only the lengths of the data are read.

    Raises:
        ValueError: the task has no translation data, or its training set is missing or empty.
    """
    source = target = 0
    try:
        for epoch in range(1, len(split_paths(task.cfg.data)) + 1):
            with loaded(task, split, epoch) as pairs:
                source += int(pairs.src_sizes.sum())
                target += int(pairs.tgt_sizes.sum())
        return target / source
    except (AttributeError, FileNotFoundError, ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"the source scale cannot be counted from the training set of {type(task).__name__} "
            f"({error}): give the number with --source-scale (the WMT'14 values are 1.0337 en-de, "
            "1.1632 en-fr)"
        ) from error
