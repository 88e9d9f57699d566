"""The source scale α: tokens in the target / tokens in the source of the training set.

Section 3.3 of the paper: source positions are multiplied by α, so that equal positions are about
equal places in both sentences.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

from fairseq.data import data_utils, indexed_dataset
from fairseq.utils import split_paths

_INSTEAD = "give the number with --source-scale (the WMT'14 values are 1.0337 en-de, 1.1632 en-fr)"


def count_source_scale(task: Any) -> float:
    """Count α from a task's binarised training set, as fairseq counts: one EOS per sentence.

    All shards (``data-bin1:data-bin2``) and all parts (train, train1, …) count once, whatever
    their upsampling. Only the lengths are read, from the index files.

    Args:
        task: a set up translation task.

    Returns:
        α > 0.

    Raises:
        ValueError: the task has no translation data, or the training set is missing or empty.
    """
    config = task.cfg
    wanted = ("data", "source_lang", "target_lang", "train_subset")
    missing = [name for name in wanted if getattr(config, name, None) is None]
    if missing:
        raise ValueError(
            f"the task {type(task).__name__} says nothing about its {', '.join(missing)}, so the "
            f"source scale cannot be counted: {_INSTEAD}"
        )
    source_tokens = target_tokens = 0
    for path in split_paths(config.data):
        for prefix in _parts(path, config):
            source_tokens += _tokens(prefix + config.source_lang, task.source_dictionary, config)
            target_tokens += _tokens(prefix + config.target_lang, task.target_dictionary, config)
    if not source_tokens or not target_tokens:
        raise ValueError(
            f"the training set {config.data} has {source_tokens} source and {target_tokens} "
            f"target tokens, so the source scale cannot be counted: {_INSTEAD}"
        )
    return target_tokens / source_tokens


def _parts(path: str, config: Any) -> Iterator[str]:
    """The beginnings of the names of train, train1, … in a folder, as fairseq looks for them."""
    source, target = config.source_lang, config.target_lang
    for k in itertools.count():
        subset = f"{config.train_subset}{k or ''}"
        prefixes = [
            os.path.join(path, f"{subset}.{a}-{b}.")
            for a, b in ((source, target), (target, source))
        ]
        there = [p for p in prefixes if indexed_dataset.dataset_exists(p + source, _impl(config))]
        if there:
            yield there[0]
        elif k:
            return
        else:
            raise ValueError(
                f"no training set {prefixes[0]}*, so the source scale cannot be counted: {_INSTEAD}"
            )


def _tokens(path: str, dictionary: Any, config: Any) -> int:
    tokens = indexed_dataset.data_file_path(path)
    if os.path.exists(tokens) and os.path.getsize(tokens) == 0:
        return 0  # which fairseq cannot map into memory
    dataset = data_utils.load_indexed_dataset(path, dictionary, _impl(config))
    return 0 if dataset is None else int(dataset.sizes.sum())


def _impl(config: Any) -> Any:
    return getattr(config, "dataset_impl", None)
