"""The kernels and bytes that positions add to a training step, as upper bounds.

A change that adds an operation is seen here. Lower a number where one is saved. Each operation is a
kernel in a GPU's eager mode; benchmarks/kernels.py says how they are counted.
"""

import importlib.util

import pytest
import torch

pytest.importorskip("tabulate")

import kernels
from kernels import Count, count_attention, count_embedding, count_model, count_rotation

if torch.__version__ < (2, 6):
    pytest.skip("the counts are of torch ≥ 2.6", allow_module_level=True)


def assert_at_most(found: Count, *most: float) -> None:
    """Operations of forward and backward, and where they are given their bytes."""
    for name, one, bound in zip(Count._fields, found, most, strict=False):
        assert one <= bound, f"{name}: {one} > {bound}"


@pytest.mark.parametrize(
    ("pos", "axes", "operations", "bytes_"),
    [
        ("cape", 2, 26, 26_757_016),
        ("cape", 1, 24, 17_057_400),
        ("sinpos", 2, 11, 5_442_733),
        ("sinpos", 1, 9, 16_921_730),
    ],
)
def test_an_embedding_is_added_in_so_many(pos, axes, operations, bytes_):
    """Batch 8, 196 tokens of 384 channels in bfloat16; its gradient passes as it is."""
    assert_at_most(count_embedding(pos, axes), operations, 0, bytes_, 0)


@pytest.mark.parametrize(
    ("pos", "most"), [("rope", (5, 7, 18.7, 26.7)), ("rope_mixed", (14, 24, 29.2, 53.2))]
)
def test_queries_and_keys_are_rotated_in_so_many(pos, most):
    """Bytes are those of a channel of both; plain operations take 24 and 92, mixed 86 and 256."""
    assert_at_most(count_rotation(pos), *most)


@pytest.mark.parametrize(
    ("pos", "tokens", "shared", "most"),
    [
        ("relpos", 1024, True, (6, 20, 6.5, 21.0)),
        ("relpos", 4096, True, (67, 347, 5.1, 19.3)),  # in parts
        ("alibi", 1024, True, (6, 0, 2.2, 0.5)),
        ("alibi", 1024, False, (6, 0, 8.8, 2.0)),
    ],
)
def test_scores_get_their_bias_in_so_many(pos, tokens, shared, most):
    """Bytes are those of a score; relpos took 50 at 4,096 tokens when it copied its scores."""
    assert_at_most(count_attention(pos, tokens, shared), *most)


# case → variant → operations and bytes of a tiny model of one layer, beyond nopos
STEPS: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "vit_small": {
        "sinpos": (12, 1, 44074, 2304),
        "cape": (21, 1, 75730, 2304),
        "rope": (16, 7, 82928, 102400),
        "cape_rope": (25, 7, 109662, 104960),
        "cape_rope_mixed": (27, 24, 99934, 212784),
        "cape_alibi": (22, 0, 5064, 300),
        "random_rope": (34, 7, 111918, 104960),
    },
    "wmt_base": {
        "cape": (26, 0, 169984, 0),
        "cape_rope": (30, 12, 248768, 226304),
        "cape_alibi": (34, -2, 46200, 512),
    },
    "conformer_12": {
        "cape": (20, 0, 30240, 0),
        "cape_rope": (24, 7, 54768, 43008),
        "relpos": (7, 22, 33776, 245812),
        "cape_alibi": (21, 0, 120136, 4512),
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
