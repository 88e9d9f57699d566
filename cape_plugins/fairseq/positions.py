"""Positions of source and target tokens, and the module that fairseq calls for their embeddings.

Source and target start with one token each (BOS, EOS) at 0, and section 3.3 of the paper multiplies
source positions by α, so that equal positions are about equal places in both sentences.
"""

import itertools
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import data_utils, indexed_dataset
from fairseq.utils import split_paths
from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.attention import CurrentPositions
from cape_plugins.augment import AsGiven, Augmentation, Draw, per_axis
from cape_plugins.embedding import PositionalEmbedding1d
from cape_plugins.positions import check_positive
from cape_plugins.ranks import generator_of_rank

logger = logging.getLogger(__name__)


class CurrentBatch(CurrentPositions):
    """Positions of the batch that is going through an encoder or a decoder.

    fairseq calls ``embed_positions`` with tokens alone and layers without any, hence the detour.
    Nothing is cleared when the layers have run: activation checkpointing runs them again in the
    backward, which must therefore come before the next forward.

    Attributes:
        tokens: (B, N) of the tokens, or (1, N) to share them; NaN at padding.
    """

    tokens: Tensor | None = None

    def show(self, positions: Tensor) -> None:
        """Say it to the attention and to ``embed_positions``."""
        self.tokens = positions
        super().show(positions)


def positions_in_batch(tokens: Tensor, padding_idx: int, spacing: float = 1.0) -> Tensor:
    """Positions of tokens padded on either side: the first real token of each row sits at 0.

    Args:
        tokens: (B, N) token numbers.
        padding_idx: the number of the padding token.
        spacing: distance between neighbouring tokens.

    Returns:
        (B, N) float32, NaN at padding.
    """
    real = tokens.ne(padding_idx)
    index = real.cumsum(dim=1) - 1
    return torch.where(real, index.to(torch.float32) * spacing, math.nan)


class TokenPositions(nn.Module):
    """Augments the positions of a batch's tokens as the variant does, once for all that read them.

    Args:
        pos: the variant.
        current: where embeddings and attention read them.
        max_global_shift, max_local_shift, max_global_scale: CAPE's, in tokens; see
            :class:`cape_plugins.Augmentation`. There is no centring in fairseq: sentences of a
            pair stay aligned at their first tokens, and decoding does not know the length.
        random_range: the positions of ``random`` are 0 … this, in tokens.
        spread: see :class:`cape_plugins.random_positions.Random`.

    Raises:
        ValueError: any value is out of range.
    """

    def __init__(
        self,
        pos: str,
        current: CurrentBatch,
        *,
        max_global_shift: float = 5.0,
        max_local_shift: float = 0.5,
        max_global_scale: float = 1.0,
        random_range: float = 1.0,
        spread: bool = True,
    ) -> None:
        super().__init__()
        check_positive("random_range", random_range)
        variant = variants.get(pos)
        self.current = current
        self.draws = "max_global_shift" in variant.options
        self.random = variant.augment is not AsGiven
        self.max_local_shift = max_local_shift
        self.augmentation = Augmentation(
            max_global_shift, max_local_shift, max_global_scale, mean_normalize=False
        )
        self.augment = variant.augment(self.augmentation, (0.0, random_range), spread)

    def draw(self, batch_size: int, device: torch.device) -> Draw | None:
        """Δ and λ of each sample in training; None where the variant draws none now."""
        if not (self.draws and self.training):
            return None
        generator = generator_of_rank(device)
        return self.augmentation.draw(batch_size, device=device, generator=generator)

    def forward(self, positions: Tensor, batch: int, draw: Draw | None) -> None:
        """Show the tokens' positions to all that read them.

        Args:
            positions: (B, N), or (1, N) to share them; NaN at padding.
            batch: B.
            draw: Δ and λ that source and target share. Default: drawn here, in training.
        """
        local = generator = None
        if self.random and self.training:
            generator = generator_of_rank(positions.device)
            local = per_axis([self.max_local_shift], positions.device)
        moved = self.augment(positions[..., None], batch, local, draw, generator)
        self.current.show(moved[..., 0])


class TokenEmbedding(nn.Module):
    """Positional embeddings of tokens, with the interface of fairseq's ``embed_positions``.

    fairseq adds what this returns to the token embeddings (scaled by √d, as it does).

    Args:
        dim: channels, even.
        pos: the variant; those that add nothing need no module.
        current: positions of the batch, augmented.
        max_positions: the longest sequence, in tokens; also what ``abspos`` has vectors for.
        added_tokens: tokens that the model adds to the sequence (BOS), on top of that.
        frequency_scale: multiplies all frequencies.
    """

    zero: Tensor

    def __init__(
        self,
        dim: int,
        pos: str,
        current: CurrentBatch,
        *,
        max_positions: int,
        added_tokens: int = 0,
        frequency_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.max_positions = max_positions  # fairseq reads it to filter what is too long
        self.current = current
        self.embedding = PositionalEmbedding1d(
            dim,
            pos,
            max_length=max_positions + added_tokens,
            overflow="error",
            frequency_scale=frequency_scale,
        )
        # carries the model's dtype and device; not in checkpoints
        self.register_buffer("zero", torch.zeros(1), persistent=False)

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """Embeddings of the current batch, whose tokens (B, N) are: (B|1, N, dim), model's dtype.

        In incremental decoding only that of the last token, (1, 1, dim).
        """
        positions = self.current.tokens
        assert positions is not None, "the model shows them first"
        if incremental_state is not None:
            positions = positions[:, -1:]
        content = self.zero.expand(*positions.shape, self.embedding.dim)
        return self.embedding.add(content, positions)


class VariantMark(nn.Module):
    """Keeps the variant's number and α among the weights, which do not tell what they are for.

    Args:
        pos: the variant.
        source_scale: α of cape in translation; 0 for the others, which keep none.
    """

    number: Tensor
    source_scale: Tensor | None  # in millionths, since an integer stays as it is in half precision

    def __init__(self, pos: str, source_scale: float = 0.0) -> None:
        super().__init__()
        self.pos = pos
        self.register_buffer("number", torch.tensor([variants.get(pos).number]))
        scale = torch.tensor([round(1e6 * source_scale)]) if source_scale else None
        self.register_buffer("source_scale", scale)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """fairseq calls this before it loads weights, to resume, fine-tune or generate.

        A checkpoint's α gives way to the model's, with a warning.

        Raises:
            ValueError: the weights are of another variant.
        """
        key = f"{name}.number"
        found = int(state_dict.setdefault(key, self.number)[0])  # absent: before there was a mark
        if found != variants.get(self.pos).number:
            known = {variant.number: pos for pos, variant in variants.VARIANTS.items()}
            pos = known.get(found, "unknown")
            raise ValueError(
                f"the checkpoint was trained with --pos {pos}, this model has --pos {self.pos}: "
                f"train with --pos {pos}, or give another --save-dir, --restore-file or "
                "--finetune-from-model"
            )
        if self.source_scale is None:
            return
        before, now = state_dict.get(f"{name}.source_scale", self.source_scale), self.source_scale
        if int(before) != int(now):
            logger.warning(
                f"--source-scale {int(now) / 1e6:g} replaces {int(before) / 1e6:g}, with which the "
                "checkpoint was trained: leave it out to keep the checkpoint's"
            )
        state_dict[f"{name}.source_scale"] = now


def prepend_bos(tokens: Tensor, *, bos: int, padding_idx: int) -> tuple[Tensor, Tensor]:
    """Insert BOS before the first real token of each row, unless it is BOS already.

    fairseq gives the decoder a first token (EOS) but the encoder none. The model inserts it, rather
    than a task, because fairseq-generate and its like take the task from their command line, not
    from the checkpoint.

    One column is added on the left in any case (a shape must not depend on the data), so token j
    is found at j + 1 afterwards; a row that begins with BOS gets padding there.

    Args:
        tokens: (B, N) token numbers, N ≥ 1, padded on either side.
        bos: the number of BOS.
        padding_idx: the number of the padding token.

    Returns:
        (B, N + 1) tokens, and a (B, N + 1) mask of the inserted ones.
    """
    first = tokens.ne(padding_idx).int().argmax(dim=1, keepdim=True)
    missing = tokens.gather(1, first).ne(bos)
    # after the shift by one, index `first` is the last one before the first real token
    inserted = torch.zeros_like(F.pad(tokens, (1, 0)), dtype=torch.bool)
    inserted = inserted.scatter(1, first, missing)
    tokens = F.pad(tokens, (1, 0), value=padding_idx).masked_fill(inserted, bos)
    return tokens, inserted


_INSTEAD = "give the number with --source-scale (the WMT'14 values are 1.0337 en-de, 1.1632 en-fr)"


def count_source_scale(task: Any) -> float:
    """Count α, target / source tokens of a task's training set, with one EOS per sentence.

    All shards (``data-bin1:data-bin2``) and all parts (train, train1, …) count once, whatever
    their upsampling. Only the lengths are read, from the index files.

    Args:
        task: a set up translation task.

    Returns:
        α > 0.

    Raises:
        ValueError: the task has no translation data, or the training set is missing or empty.
    """
    totals = [0, 0]
    for side, (total, _) in _training_set(task):
        totals[side] += total
    if not all(totals):
        raise ValueError(
            f"the training set {task.cfg.data} has {totals[0]} source and {totals[1]} target "
            f"tokens, so the source scale cannot be counted: {_INSTEAD}"
        )
    return totals[1] / totals[0]


def longest_training_sentence(task: Any) -> int | None:
    """Tokens of the longest source or target, with EOS; None where no training set is found."""
    try:
        return max(longest for _, (_, longest) in _training_set(task))
    except (AttributeError, ValueError):  # of a task without sentences, or generation without them
        return None


def _training_set(task: Any) -> Iterator[tuple[int, tuple[int, int]]]:
    """(0 source | 1 target, (tokens, longest sentence)) of each part of the training set."""
    config = task.cfg
    wanted = ("data", "source_lang", "target_lang", "train_subset")
    missing = [name for name in wanted if getattr(config, name, None) is None]
    if missing:
        raise ValueError(
            f"the task {type(task).__name__} says nothing about its {', '.join(missing)}, so the "
            f"source scale cannot be counted: {_INSTEAD}"
        )
    for path in split_paths(config.data):
        for prefix in _parts(path, config):
            yield 0, _tokens(prefix + config.source_lang, task.source_dictionary, config)
            yield 1, _tokens(prefix + config.target_lang, task.target_dictionary, config)


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


def _tokens(path: str, dictionary: Any, config: Any) -> tuple[int, int]:
    """Tokens of all sentences, and of the longest."""
    tokens = indexed_dataset.data_file_path(path)
    if os.path.exists(tokens) and os.path.getsize(tokens) == 0:
        return 0, 0  # which fairseq cannot map into memory
    dataset = data_utils.load_indexed_dataset(path, dictionary, _impl(config))
    return (
        (0, 0) if dataset is None else (int(dataset.sizes.sum()), int(dataset.sizes.max(initial=0)))
    )


def _impl(config: Any) -> Any:
    return getattr(config, "dataset_impl", None)
