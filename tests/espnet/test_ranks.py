"""Each of several processes shifts by draws of its own, although ESPnet seeds them alike."""

import pytest
import torch

pytest.importorskip("espnet2")

from espnet2.torch_utils.set_all_random_seed import set_all_random_seed

from espnet_support import batch, make, process


def train(rank: int, processes: int) -> tuple[list[list[float]], float]:
    """Δ + ε of two steps' samples as ESPnet begins an epoch, and a number drawn then."""
    encoder = make(max_global_scale=1.0).train()
    seen: list[list[float]] = []
    augment = encoder.position.augment

    def watched(*given, **named):
        moved = augment(*given, **named)
        seen.append((moved[:, 0] + 0.135).tolist())  # centred: it was at -135 ms
        return moved

    encoder.position.augment = watched
    with process(rank, processes):
        set_all_random_seed(1)
        for _ in range(2):
            encoder(*batch(30, 30, 30))
    return seen, torch.rand(()).item()


def test_two_processes_shift_differently_and_share_all_other_random_numbers():
    (first, after_first), (second, after_second) = train(0, 2), train(1, 2)
    gaps = (torch.tensor(first) - torch.tensor(second)).abs()
    assert gaps.min() > 0.031  # more than two ε
    assert len({number for step in first for number in step}) == 6  # and in each step anew
    assert after_first == after_second


def test_one_process_draws_from_torchs_own_generator_in_a_group_or_not():
    alone = train(0, 0)
    assert train(0, 1) == alone
    set_all_random_seed(1)
    shift = (torch.rand(3, 1) * 2 - 1) * 30.0
    assert torch.allclose(torch.tensor(alone[0][0]), shift[:, 0], rtol=0, atol=0.016)
