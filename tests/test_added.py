"""A learned vector for each token, lengths in tokens, and what a part may leave out."""

import pytest
import torch

from cape_plugins import Sizes, Table


@pytest.mark.parametrize("spacing", [1.0, 0.02, 0.016, 0.025, 0.0375])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 0.25, 0.5, 0.75, 1.5])
def test_neighbours_never_share_a_vector_wherever_the_first_one_stands(offset, spacing, dtype):
    """A frame that a convolution makes of an even number of frames stands between two."""
    table = Table(Sizes(dim=1, spacing=spacing), abspos_context=50 * spacing, overflow="error")
    table.table.data[:, 0] = torch.arange(50.0)
    positions = (torch.arange(40, dtype=torch.float64) * spacing + offset * spacing).to(dtype)
    found = table.embedding(positions[None, :, None], torch.float32)[0, :, 0].tolist()
    first = int(offset + 0.5)
    assert found == [*range(first, first + 40)]


@pytest.mark.parametrize(
    ("length", "spacing", "tokens"),
    [(2.9, 1.0, 3), (2.4, 1.0, 2), (0.13, 0.04, 3), (0.15, 0.04, 4)],
)
def test_a_length_is_the_nearest_number_of_tokens(length, spacing, tokens):
    assert Sizes(dim=2, spacing=spacing).tokens("context", length) == tokens
    with pytest.raises(ValueError, match=f"context .*{spacing:g}"):
        Sizes(dim=2, spacing=spacing).tokens("context", 0.75 * spacing)
