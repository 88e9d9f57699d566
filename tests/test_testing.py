"""``cape_plugins.testing``: every variant passes all checks, and a wrong one does not."""

from dataclasses import dataclass

import pytest
import torch

from cape_plugins import PositionalAttention, Variant, register_variant, testing
from cape_support import OURS

QUICK = [check for check in testing.CHECKS if check is not testing.check_compile]


@pytest.mark.parametrize("check", QUICK)
@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_ours_do_what_every_variant_does(check, pos, axes):
    check(pos, axes)  # tests/test_compilers.py compiles them


@dataclass(eq=False, repr=False)
class Batch(PositionalAttention):
    """Looks at other samples."""

    def embed(self, x, rows):
        return x - x.mean(dim=0, keepdim=True)


@dataclass(eq=False, repr=False)
class Neighbour(PositionalAttention):
    """Embeds a key by the positions of others, which a cache does not have."""

    def prepare(self, queries, keys, mask, dtype):
        first, second = (x.nan_to_num() for x in (queries, keys))
        return super().prepare(first - first.mean(1, keepdim=True), second, mask, dtype)

    def embed(self, x, rows):
        return x * (1 + rows[..., :1])[:, None]


@dataclass(eq=False, repr=False)
class Blind(PositionalAttention):
    """Has no mask."""

    def prepare(self, queries, keys, mask, dtype):
        return super().prepare(queries, keys, None, dtype)


@dataclass(eq=False, repr=False)
class BlindToNumbers(PositionalAttention):
    """Has no mask that is added to the scores."""

    def prepare(self, queries, keys, mask, dtype):
        taken = mask is not None and mask.dtype == torch.bool
        return super().prepare(queries, keys, mask if taken else None, dtype)


@dataclass(eq=False, repr=False)
class Doubles(PositionalAttention):
    """Is another where samples share their positions."""

    def embed(self, x, rows):
        return x * x.shape[0] / rows.shape[0]


@dataclass(eq=False, repr=False)
class Idle(PositionalAttention):
    """Has a parameter that nobody uses."""

    def __post_init__(self):
        super().__post_init__()
        self.idle = torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Batch, testing.check_batch),
        (Neighbour, testing.check_cache),
        (Blind, testing.check_mask),
        (Blind, testing.check_padding),
        (BlindToNumbers, testing.check_padding),
        (Doubles, testing.check_batch),
        (Idle, testing.check_training),
    ],
)
def test_a_wrong_variant_does_not_pass(own_table, kind, check):
    register_variant("wrong", Variant(attends=kind, axes=(1,)))
    with pytest.raises(AssertionError):
        check("wrong", 1)
