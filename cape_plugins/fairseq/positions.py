"""Where tokens are, and the module that fairseq calls for their embeddings."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cape_plugins.augment import Draw
from cape_plugins.embedding import PositionalEmbedding1d


def positions_in_batch(tokens: Tensor, padding_idx: int, scale: float = 1.0) -> Tensor:
    """Positions of tokens padded on either side: the first real token of each row sits at 0.

    Args:
        tokens: (B, N) token numbers.
        padding_idx: the number of the padding token.
        scale: distance between neighbouring tokens.

    Returns:
        (B, N) float32, NaN at padding.
    """
    real = tokens.ne(padding_idx)
    index = real.cumsum(dim=1) - 1
    return torch.where(real, index.to(torch.float32) * scale, math.nan)


class TokenEmbedding(nn.Module):
    """Positional embeddings of tokens, with the interface of fairseq's ``embed_positions``.

    fairseq adds what this returns to the token embeddings (scaled by √d, as it does).

    Args:
        dim: channels, even.
        variant: ``abspos``, ``sinpos`` or ``cape`` (``nopos`` and ``relpos`` need no module).
        padding_idx: the number of the padding token.
        max_positions: the longest sequence, in tokens; also what ``abspos`` has vectors for.
        added_tokens: tokens that the model adds to the sequence (BOS), on top of that.
        token_scale: distance between neighbouring tokens.
        max_global_shift, max_local_shift, max_global_scale: CAPE's, in tokens; see
            :class:`cape_plugins.Augmentation`. There is no centring in fairseq: sentences of a
            pair stay aligned at their first tokens, and decoding does not know the length.

    Raises:
        ValueError: any value is out of range.
    """

    def __init__(
        self,
        dim: int,
        variant: str,
        *,
        padding_idx: int,
        max_positions: int,
        added_tokens: int = 0,
        token_scale: float = 1.0,
        max_global_shift: float = 5.0,
        max_local_shift: float = 0.5,
        max_global_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.max_positions = max_positions  # fairseq reads it to filter what is too long
        self.token_scale = token_scale
        self.embedding = PositionalEmbedding1d(
            dim,
            variant,
            max_global_shift=max_global_shift,
            max_local_shift=max_local_shift,
            max_global_scale=max_global_scale,
            mean_normalize=False,
            max_length=max_positions + added_tokens,
            overflow="error",
        )
        self.shared_draw: Draw | None = None
        # carries the model's dtype and device; not in checkpoints
        self.register_buffer("zero", torch.zeros(1), persistent=False)

    def draw(self, batch_size: int) -> Draw | None:
        """Δ and λ of each sentence pair: for cape in training, else None."""
        if not self.training or self.embedding.variant != "cape":
            return None
        return self.embedding.augmentation.draw(batch_size, device=self.zero.device)

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """Embeddings of tokens (B, N): (B, N, dim) in the model's dtype.

        In incremental decoding only that of the last token, (1, 1, dim): ``tokens`` is then the
        whole prefix, and all rows are equally long (finished ones hold padding, which counts).
        """
        if incremental_state is not None:
            last = (tokens.shape[1] - 1) * self.token_scale
            positions = torch.full((1, 1), last, device=tokens.device)
        else:
            positions = positions_in_batch(tokens, self.padding_idx, self.token_scale)
        content = self.zero.expand(*positions.shape, self.embedding.dim)
        return self.embedding(content, positions, draw=self.shared_draw)


@contextmanager
def sharing(embed_positions: TokenEmbedding | None, draw: Draw | None) -> Iterator[None]:
    """Within this context the embedding uses the given draw of Δ and λ.

    fairseq's forward calls ``embed_positions`` with tokens alone, hence the detour.
    """
    if embed_positions is None:
        yield
        return
    embed_positions.shared_draw = draw
    try:
        yield
    finally:
        embed_positions.shared_draw = None
