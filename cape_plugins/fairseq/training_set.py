"""Reads the training set before training: the source scale α, and a batch for ADMIN."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.data import data_utils
from fairseq.utils import split_paths


@contextmanager
def _loaded(task: Any, split: str, epoch: int = 1) -> Iterator[Any]:
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
            with _loaded(task, split, epoch) as pairs:
                source += int(pairs.src_sizes.sum())
                target += int(pairs.tgt_sizes.sum())
        return target / source
    except (AttributeError, FileNotFoundError, ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"the source scale cannot be counted from the training set of {type(task).__name__} "
            f"({error}): give the number with --source-scale (the WMT'14 values are 1.0337 en-de, "
            "1.1632 en-fr)"
        ) from error


def median_batch(task: Any, split: str, tokens: int) -> dict[str, Any]:
    """A batch of about ``tokens`` tokens, in training sentences of the median length.

    Raises:
        ValueError: the training set is missing or empty.
    """
    try:
        with _loaded(task, split) as data, data_utils.numpy_seed(1):
            order = data.ordered_indices()
            longer = order[len(order) // 2 :]
            sentences = max(1, tokens // data.num_tokens(int(longer[0])))
            return data.collater([data[int(index)] for index in longer[:sentences]])
    except (FileNotFoundError, IndexError, ValueError) as error:
        raise ValueError(
            "--admin-init measures residuals on the training set, which is missing or empty "
            f"({error}): put it there, or give --admin-scales"
        ) from error
