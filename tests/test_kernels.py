"""The kernels and bytes that positions add to a training step, as upper bounds.

A change that adds an operation is seen here. Lower a number where one is saved. Each operation is a
kernel in a GPU's eager mode; benchmarks/kernels.py says how they are counted.
"""

import importlib.util

import pytest
import torch

pytest.importorskip("tabulate")

import kernels
from kernels import (
    Count,
    count_attention,
    count_embedding,
    count_mixed_table,
    count_model,
    count_rotation,
)

if torch.__version__ < (2, 6):
    pytest.skip("the counts are of torch ≥ 2.6", allow_module_level=True)


def assert_at_most(found: Count, *most: float) -> None:
    """Operations of forward and backward, and where they are given their bytes."""
    for name, one, bound in zip(Count._fields, found, most, strict=False):
        assert one <= bound, f"{name}: {one} > {bound}"


@pytest.mark.parametrize(
    ("pos", "axes", "operations", "bytes_"),
    [
        ("cape", 2, 27, 26_807_146),
        ("cape", 1, 25, 17_082_458),
        ("sinpos", 2, 11, 5_442_733),
        ("sinpos", 1, 9, 16_921_730),
    ],
)
def test_an_embedding_is_added_in_so_many(pos, axes, operations, bytes_):
    """Batch 8, 196 tokens of 384 channels in bfloat16; its gradient passes as it is."""
    assert_at_most(count_embedding(pos, axes), operations, 0, bytes_, 0)


def test_queries_and_keys_are_rotated_in_so_many():
    """Bytes are those of a channel of both; plain operations take 24 and 92."""
    assert_at_most(count_rotation("rope"), 5, 7, 18.7, 26.7)


def test_the_table_of_rope_mixed_is_made_in_so_many():
    """Of a layer of timm's twins; timm's own way takes 23 operations and 2.5 times the bytes."""
    found = count_mixed_table()
    assert found.forward + found.backward <= 12
    assert found.forward_bytes + found.backward_bytes <= 18_271_232


@pytest.mark.parametrize(
    ("pos", "tokens", "shared", "most"),
    [
        ("relpos", 1024, True, (5, 21, 6.5, 21.0)),
        ("relpos", 4096, True, (66, 348, 5.1, 19.3)),  # in parts
        ("alibi", 1024, True, (6, 0, 2.2, 0.5)),
        ("alibi", 1024, False, (6, 0, 8.8, 2.0)),
    ],
)
def test_scores_get_their_bias_in_so_many(pos, tokens, shared, most):
    """Bytes are those of a score; relpos took 50 at 4,096 tokens when it copied its scores."""
    assert_at_most(count_attention(pos, tokens, shared), *most)


# case → variant → operations and bytes of a tiny model of one layer, beyond nopos, which has no
# positions to check
STEPS: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "vit_small": {
        "sinpos": (12, 1, 44074, 2304),
        "cape": (21, 1, 75730, 2304),
        "rope": (15, 7, 82884, 102400),
        "cape_rope": (24, 7, 109698, 104960),
        "cape_alibi": (21, 0, 5100, 300),
        "random_rope": (33, 7, 112530, 104960),
    },
    "wmt_base": {
        "cape": (34, 0, 170884, 0),
        "cape_rope": (38, 12, 242020, 226816),
        "cape_alibi": (40, -2, 45900, 512),
    },
    "conformer_12": {
        "cape": (24, 0, 31490, 0),
        "cape_rope": (28, 7, 56018, 43008),
        "relpos": (10, 22, 34450, 245812),
        "cape_alibi": (28, 0, 121122, 4512),
    },
}


@pytest.mark.parametrize("case", STEPS)
def test_a_training_step_of_a_host_has_so_many_more(case):
    package = {"timm": "timm", "fairseq": "fairseq", "espnet": "espnet2"}[kernels.HOSTS[case][0]]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package} here")
    base = count_model(case, 2, "nopos", tiny=True)
    for pos, most in STEPS[case].items():
        assert_at_most(count_model(case, 2, pos, tiny=True).beyond(base), *most)
