"""Several processes with one seed: each draws positions of its own, in compiled code too."""

import json
import sys

import pytest
import torch

from cape_plugins.ranks import of_rank
from cape_support import run

PROGRAM = """
import json, sys, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
from cape_plugins import Positions, token_positions
found = {}
for pos, options in (
    ("cape_rope", dict(max_local_shift=0.5, max_global_scale=1.4)),
    ("random_rope", dict(random_range=40.0)),
    ("pose_rope", dict(pose_range=90.0)),
):
    made = Positions(pos, dim=8, heads=2, layers=1, **options).train()
    forward = lambda where: made(None, where)[1].queries
    torch._dynamo.reset()
    compiled = torch.compile(forward, backend="eager", fullgraph=True)  # a break is an error
    for name, one in (("eager", forward), ("compiled", compiled)):
        torch.manual_seed(0)
        found[f"{pos} {name}"] = one(token_positions([6])).flatten().tolist()
print(f"rank {rank}: " + json.dumps(found), flush=True)
"""


def test_two_processes_with_one_seed_draw_apart_and_compile_whole(tmp_path):
    script = tmp_path / "draw.py"
    script.write_text(PROGRAM)
    two = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    status, said = run(sys.executable, *two, str(script))
    assert status == 0, said
    lines = [line for line in said.splitlines() if line.startswith("rank ")]
    first, second = (json.loads(line.partition(": ")[2]) for line in sorted(lines))
    assert len(first) == 6
    for name in first:
        assert first[name] != second[name], name
        kind = name.partition(" ")[0]
        for of in (first, second):  # a seed repeats them, compiled or not
            assert of[name] == pytest.approx(of[f"{kind} eager"], abs=1e-5)


@pytest.fixture
def rank(monkeypatch):
    """Makes this process one of several."""
    ranks = torch.distributed
    monkeypatch.setattr(ranks, "is_initialized", lambda: True)
    return lambda number: monkeypatch.setattr(ranks, "get_rank", lambda: number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_of_every_rank_are_uniform_in_0_to_1(rank, dtype):
    draws = torch.rand(20_000, dtype=dtype)
    rank(0)
    assert of_rank(draws) is draws
    for number in (1, 2, 7, 1000):
        rank(number)
        moved = of_rank(draws)
        assert moved.dtype == dtype
        assert moved.min() >= 0
        assert moved.max() < 1
        parts = torch.histc(moved.float(), bins=10, min=0, max=1)
        assert (parts - 2000).abs().max() < 300  # seven standard deviations
        # neither they nor their differences are those of the first rank, or near them
        for one, other in ((moved, draws), (moved.diff(), draws.diff())):
            both = torch.stack([one, other]).double()
            assert torch.corrcoef(both)[0, 1].abs() < 0.05  # seven standard deviations


def test_a_rank_has_each_number_once(rank):
    numbers = torch.arange(2**24, dtype=torch.float32) / 2**24  # what torch.rand makes
    rank(3)
    found = (of_rank(numbers) * 2**24).long()
    assert torch.equal(found.sort().values, torch.arange(2**24))
