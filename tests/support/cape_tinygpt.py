"""A host in a package of its own: tinygpt's model with a variant's positions, all in one file.

Its pyproject.toml names the module after whose import it registers, and this one::

    [project.entry-points."cape_plugins.hosts"]
    tinygpt = "cape_tinygpt"
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import tinygpt
from cape_plugins import TOKEN_DECODER, Given
from cape_plugins.inside import TokenKind
from cape_plugins.testing import Kept


class CapeAttention(tinygpt.Attention):
    """tinygpt's, with a variant's positions."""

    def forward(self, x: Tensor, positional: Any, given: Given, cache: dict[Any, Kept] | None):
        """(B, N, dim) → (B, N, dim)."""
        split = self.project(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        kept = None if cache is None else cache.setdefault(self, Kept())
        mixed, _ = positional(*split, given, cache=kept)
        return self.out(mixed.transpose(1, 2).flatten(2))


class CapeGPT(tinygpt.GPT):
    """tinygpt's, with ``pos`` and its options; tokens 0 are padding, on the right."""

    def __init__(self, words: int, pos: str = "cape_rope", **named: Any) -> None:
        sizes = {n: named.pop(n) for n in ("dim", "heads", "layers", "context")}
        super().__init__(words, **sizes)
        self.places = None
        sets = {"abspos_context": sizes.pop("context"), "overflow": "error"}
        options = TOKEN_DECODER.options(pos, named)
        self.positions = TOKEN_DECODER.positions(pos, options, sets, **sizes, causal=True)
        for block in self.blocks:
            block.attention.__class__ = CapeAttention

    def forward(self, tokens: Tensor, cache: dict[Any, Kept] | None = None, past: int = 0):
        """Of a whole text, or of new tokens after ``past`` others, whose keys are in ``cache``."""
        mask = None if past else (tokens != 0)[:, None]
        x, given = self.positions(self.tokens(tokens), mask=mask, past=past)
        for block, positional in zip(self.blocks, self.positions.attentions, strict=True):
            x = block(x, positional, given, cache)
        return self.head(x)


def register() -> None:
    """Give tinygpt our model by its name."""
    tinygpt.MODELS["cape_gpt"] = CapeGPT


class _Kind(TokenKind):
    name, host, causal, takes_content, scales = "tinygpt", TOKEN_DECODER, True, False, True

    def build(self, pos, seed, **options):
        torch.manual_seed(seed)
        return CapeGPT(50, pos, dim=24, heads=3, layers=2, context=64, **options)

    def stack(self, model):
        return SimpleNamespace(layers=model.blocks, positions=model.positions)

    def run(self, model, samples):
        return self.unpadded(model(self.batch(samples)), samples)

    def ways(self, model, samples):
        cache, steps = {}, samples[0][None]
        found = [model(steps[:, i : i + 1], cache, i) for i in range(len(samples[0]))]
        yield "in steps", [torch.cat(found, dim=1)[0], self.run(model, samples)[1]]


KINDS = (_Kind(),)
register()
