"""A learned vector for each token: which positions share one."""

import pytest
import torch

from cape_plugins import Sizes, Table


def rows(positions: torch.Tensor, spacing: float = 1.0, tokens: int = 50) -> list[int]:
    """Of a table the row at each position."""
    table = Table(Sizes(dim=1, spacing=spacing), abspos_context=tokens * spacing, overflow="error")
    table.table.data[:, 0] = torch.arange(float(len(table.table)))
    return table.embedding(positions[None, :, None], torch.float32)[0, :, 0].tolist()


@pytest.mark.parametrize("spacing", [1.0, 0.02, 0.016, 0.025, 0.0375])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 0.25, 0.5, 0.75, 1.5])
def test_neighbours_never_share_a_vector_wherever_the_first_one_stands(offset, spacing, dtype):
    """A frame that a convolution makes of an even number of frames stands between two."""
    positions = (torch.arange(40, dtype=torch.float64) * spacing + offset * spacing).to(dtype)
    found = rows(positions, spacing)
    assert [one - found[0] for one in found] == list(range(40))
    assert found[0] == int(offset + 0.5)
