"""Negative log loss at each position of the target, by teacher forcing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cape_plugins.evaluation.fairseq.checkpoints import Loaded
from cape_plugins.evaluation.fairseq.testset import Runtime, batches


@dataclass(frozen=True)
class PositionLosses:
    """Losses of a test set, of T tokens in all.

    Attributes:
        sentence: (T,) int64, number of the token's sentence.
        position: (T,) int64, in the target, from 0. The last of a sentence is its EOS.
        nats: (T,) float64, negative log probability.
    """

    sentence: Tensor
    position: Tensor
    nats: Tensor

    @cached_property
    def sums(self) -> Tensor:
        """(N,) float64, of the nats; entry i belongs to position i + 1."""
        return torch.bincount(self.position, self.nats)

    @cached_property
    def sentences(self) -> Tensor:
        """(N,) int64, how many reach the position; entry i belongs to position i + 1."""
        return torch.bincount(self.position)

    def mean(self, first: int = 1, last: int | None = None) -> float | None:
        """The mean over the tokens at positions first … last, in nats; None without any."""
        tokens = self.tokens(first, last)
        return float(self.sums[first - 1 : last].sum()) / tokens if tokens else None

    def tokens(self, first: int = 1, last: int | None = None) -> int:
        """How many there are at positions first … last, EOS included."""
        return int(self.sentences[first - 1 : last].sum())

    def items(self) -> Iterator[list[tuple[str, int, float, int]]]:
        """For each position the sentences that reach it."""
        order = self.position.argsort(stable=True)
        here = [each[order].split(self.sentences.tolist()) for each in (self.sentence, self.nats)]
        for sentences, nats in zip(*here, strict=True):
            pairs = zip(sentences.tolist(), nats.tolist(), strict=True)
            yield [("loss", sentence, nat, 1) for sentence, nat in pairs]


@torch.no_grad()
def position_losses(
    loaded: Loaded, dataset: Any, runtime: Runtime, title: str = ""
) -> PositionLosses:
    """Score every reference, each token given the true ones before it.

    Without label smoothing. Models that begin the source with BOS insert it themselves.

    Args:
        loaded: its model is moved to the device.
        dataset: of its task.
        runtime: how it is run.
        title: of the progress bar.

    Raises:
        ValueError: a sentence is too long for the model, or a loss is not a finite number.
        RuntimeError: a sentence was left out.
    """
    model = runtime.place(loaded.model)
    padding = loaded.task.target_dictionary.pad()
    found: list[PositionLosses] = []
    for sample in batches(loaded, dataset, runtime, title):
        with runtime.autocast():
            output = model(**sample["net_input"])
            log_probs = model.get_normalized_probs(output, log_probs=True, sample=sample)
        target = model.get_targets(sample, output)
        real = target.ne(padding)
        loss = -log_probs.gather(2, target.unsqueeze(2)).squeeze(2)[real].cpu().double()
        if not loss.isfinite().all():
            raise ValueError(
                f"a loss in the batch of sentence {int(sample['id'][0])} is not finite"
            )
        position = (real.cumsum(1) - 1)[real].cpu()  # whatever side is padded
        sentence = sample["id"][:, None].expand_as(real)[real].cpu()
        found.append(PositionLosses(sentence, position, loss))
    each = ([getattr(one, name) for one in found] for name in ("sentence", "position", "nats"))
    return PositionLosses(*map(torch.cat, each))


def ranges(edges: Sequence[int], longest: int) -> list[tuple[int, int]]:
    """Positions 1 … longest cut after each edge: (first, last) pairs."""
    inner = [edge for edge in sorted(set(edges)) if edge < longest]
    return list(zip([1, *(edge + 1 for edge in inner)], [*inner, longest], strict=True))
