"""Positions of any dtype that is taken are exact: what each of them is, and how far apart two are.

Integers are what timestamps, sample numbers and frame numbers come in, and float32 holds none above
2^24 for sure: ten seconds of 2026 would be one position.
"""

import pytest
import torch

from cape_plugins import sinusoid_1d, token_positions
from cape_support import build, seeded

SECONDS = 1_767_225_600 + torch.arange(0, 60, 10)  # 2026-01-01, int64
MILLISECONDS = 1_767_225_600_000 + torch.arange(0, 60, 10)
SAMPLES = 2**24 + torch.arange(6, dtype=torch.int32)  # 17 minutes at 16 kHz
PIXELS = torch.arange(250, 256, dtype=torch.uint8)
INTEGERS = {"seconds": SECONDS, "ms": MILLISECONDS, "samples": SAMPLES, "pixels": PIXELS}


@pytest.fixture(params=INTEGERS)
def integers(request) -> torch.Tensor:
    return INTEGERS[request.param][None]


@pytest.mark.parametrize("pos", ["sinpos", "cape", "random"])
@pytest.mark.parametrize("training", [False, True])
def test_integers_are_embedded_as_the_same_numbers_in_float64(integers, pos, training):
    module = build(pos).train(training)
    found, expected = (
        module(torch.zeros(1, 6, 12), given, generator=seeded())[0]
        for given in (integers, integers.double())
    )
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert len(found[0].unique(dim=0)) == 6


def test_attention_sees_the_distances_of_integers_and_they_are_centred_exactly(integers):
    turned = [build("rope")(None, one)[1].queries for one in (integers, integers.double())]
    assert torch.equal(*turned)
    start = integers - integers[:, :1]
    assert torch.equal(*(build("alibi")(None, one)[1].bias for one in (integers, start)))
    centred = build("cape").eval().augment(SECONDS[None], 1)
    assert centred.flatten().tolist() == [-25.0, -15.0, -5.0, 5.0, 15.0, 25.0]


@pytest.mark.parametrize(
    "positions",
    [
        torch.tensor([[True, False]]),
        torch.tensor([[1j, 2j]]),
        torch.tensor([[0, 1_767_225_600_000_000_001]]),  # ns: float64 holds none of them for sure
        torch.tensor([[-(2**53) - 1, 0]]),
        torch.tensor([[2**63, 0]], dtype=torch.uint64),
        torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16),  # FSDP2's mixed precision casts inputs
        torch.tensor([[1.0, 2.0]], dtype=torch.float16),
    ],
    ids=["bool", "complex", "int64", "negative", "uint64", "bfloat16", "float16"],
)
def test_what_could_not_be_exact_is_refused(positions):
    for pos in ("cape", "rope"):
        with pytest.raises(ValueError, match="positions"):
            build(pos)(torch.zeros(1, 2, 12), positions)
    with pytest.raises(ValueError, match="positions"):
        sinusoid_1d(positions, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_positions_are_made_in_no_dtype_that_would_round_them(dtype):
    with pytest.raises(ValueError, match="float64"):
        token_positions([3000], dtype=dtype)
