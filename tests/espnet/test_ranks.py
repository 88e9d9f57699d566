"""Each of several processes shifts by draws of its own, although ESPnet seeds them alike."""

import json
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("espnet2")

from espnet2.torch_utils.set_all_random_seed import set_all_random_seed

from cape_plugins.espnet.encoder import CapeTransformerEncoder


def train() -> tuple[list[list[float]], float]:
    """Two steps as ESPnet begins an epoch: Δ + ε of each step's samples; a number drawn then."""
    encoder = CapeTransformerEncoder(
        *(4, 8),
        linear_units=8,
        num_blocks=1,
        attention_heads=2,
        max_global_scale=1.0,
        conv_dropout_rate=0.0,
    )
    seen: list[list[float]] = []
    encoder.position.augment.register_forward_hook(
        lambda *call: seen.append((call[2][:, 0, 0] + 0.135).tolist())  # centred: it was at -135 ms
    )
    set_all_random_seed(1)
    for _ in range(2):
        encoder(torch.zeros(3, 30, 4), torch.tensor([30, 30, 30]))
    return seen, torch.rand(()).item()


def join(rank: int, world: int, meeting: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
    )


def test_two_processes_shift_differently_and_share_all_other_random_numbers(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path / "meeting")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    (first, after_first), (second, after_second) = map(json.loads, printed)
    gaps = (torch.tensor(first) - torch.tensor(second)).abs()
    assert gaps.min() > 0.031  # more than two ε
    assert len({number for step in first for number in step}) == 6  # and in each step anew
    assert after_first == after_second


def test_one_process_draws_from_torchs_own_generator_in_a_group_or_not(tmp_path):
    join(0, 1, str(tmp_path / "meeting"))
    try:
        in_a_group = train()
    finally:
        torch.distributed.destroy_process_group()
    alone = train()
    assert in_a_group == alone
    set_all_random_seed(1)
    shift = (torch.rand(3, 1) * 2 - 1) * 30.0
    assert torch.allclose(torch.tensor(alone[0][0]), shift[:, 0], rtol=0, atol=0.016)


if __name__ == "__main__":
    join(int(sys.argv[1]), 2, sys.argv[2])
    print(json.dumps(train()))
