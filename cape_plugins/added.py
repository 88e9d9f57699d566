"""What a variant adds to the content at the input: the base class, and a learned table.

>>> table = Table(Sizes(dim=512), abspos_context=1024)
>>> x = table(content, token_positions([50])[..., None], content.dtype)     # (B, 50, 512)
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins.checks import check_values
from cape_plugins.options import POSITION, option
from cape_plugins.part import Part


@dataclass(eq=False, repr=False)
class Added(Part):
    """The embedding of positions that is added to the content, once, before the first layer.

    A subclass has :meth:`embedding`, or where what is added depends on the content, :meth:`add`
    alone: a host that cannot give the content then refuses the variant when it builds a model.
    Both are called by :meth:`forward`, so that hooks on this module (offload, ZeRO-3, pruning) act
    before its weights are read. How a subclass is written: :class:`cape_plugins.part.Part`.
    """

    def forward(self, content: Tensor | None, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """:meth:`add`, in content's dtype; without content the embedding alone, in ``dtype``."""
        if content is not None:
            return self.add(content, positions)
        return self.embedding(positions, dtype).to(dtype)

    @classmethod
    def needs_content(cls) -> bool:
        """Whether what is added depends on the content, so that there is no :meth:`embedding`."""
        return cls.embedding is Added.embedding

    def embedding(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The embedding of augmented positions (1 or B, N, axes): (1 or B, N, dim).

        It is zero where a position is NaN. ``dtype`` is the content's; an embedding in a wider one
        is rounded once, after the sum.
        """
        raise ValueError(f"{self.said('add')} needs the content: there is no embedding without it")

    def add(self, content: Tensor, positions: Tensor) -> Tensor:
        """(B, N, dim) + the embedding of positions (1 or B, N, axes), in content's dtype."""
        return (content + self.embedding(positions, content.dtype)).to(content.dtype)


@dataclass(eq=False, repr=False)
class Table(Added):
    """``abspos``: a learned vector for each token's place in a sequence.

    A position is rounded to the nearest token, ``spacing`` apart. Beyond the table ``overflow``
    decides: ``wrap`` begins again (as the paper in speech, section 4.2), ``error`` raises
    ValueError (as fairseq).
    """

    abspos_context: float | None = option(None, "the length that the table covers", unit=POSITION)
    overflow: str = option("wrap", "what happens beyond the table: wrap or error")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.abspos_context is None:
            raise ValueError("abspos needs abspos_context, the length that its table covers")
        if self.overflow not in ("wrap", "error"):
            raise ValueError(f"overflow must be wrap or error, got {self.overflow!r}")
        if self.sizes.axes != 1:
            raise ValueError("abspos is for sequences: timm's own ViT is abspos for images")
        rows = self.sizes.tokens("abspos_context", self.abspos_context)
        self.table = nn.Parameter(torch.empty(rows, self.sizes.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        nn.init.trunc_normal_(self.table, std=0.02)

    def embedding(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the table at positions (1 or B, N, 1)."""
        positions, rows = positions[..., 0], self.table.shape[0]
        padding, spacing = positions.isnan(), self.sizes.spacing
        # A frame of an even number of frames stands between two: 1.5, 2.5, … tokens. round() takes
        # both to 2. Here halves go up, those that arithmetic has made a little smaller too.
        index = torch.div(positions + 0.501 * spacing, spacing, rounding_mode="floor")
        index = index.masked_fill(padding, 0.0).long()  # (B, N)
        if self.overflow == "wrap":
            index = index.remainder(rows)
        rule = f"abspos has positions 0 … {rows - 1} (give it a larger abspos_context, or shorten "
        rule += "the input)"
        check_values(index, lambda: (index >= 0) & (index < rows), rule)
        return F.embedding(index, self.table).masked_fill(padding[..., None], 0.0)  # (B, N, dim)
