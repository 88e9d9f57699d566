"""A host that is nobody's: a decoder of tokens in the manner of nanoGPT."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, dim) → (B, N, dim)."""
        split = self.project(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a network, each after a norm."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.attention = Attention(dim, heads)
        self.network = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, *more: object) -> Tensor:
        """(B, N, dim) → (B, N, dim); attention gets what is given more."""
        x = x + self.attention(self.norms[0](x), *more)
        return x + self.network(self.norms[1](x))


class GPT(nn.Module):
    """Tokens (B, N) → logits (B, N, words)."""

    def __init__(self, words: int, dim: int, heads: int, layers: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Of a whole text."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


MODELS: dict[str, type[GPT]] = {"gpt": GPT}
