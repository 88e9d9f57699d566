"""On tensors that only say that they are on CUDA: nothing is made on the CPU, nothing waits.

A tensor of the CPU beside one of CUDA is an error there, and so is reading a value (.item()).
"""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from cape_plugins import frame_times, patch_grid, sinusoid_1d, sinusoid_2d, token_positions
from cape_plugins.attention import PositionalAttention
from cape_support import OURS, OnCuda, build, fakes_cuda

pytestmark = fakes_cuda
CUDA = torch.device("cuda")


@pytest.fixture
def fake(monkeypatch):
    # it reads its bounds from tensors
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda *_, **__: None)
    with FakeTensorMode():
        yield


def grid_or_tokens(axes: int) -> torch.Tensor:
    if axes == 1:
        return frame_times(torch.empty(2, dtype=torch.long, device=CUDA), 0.01, 6)
    return patch_grid(2, 3, device=CUDA)[None]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_every_variant_stays_on_its_device(fake, pos, axes, training):
    with torch.device("cuda"):
        positions = build(pos, axes, dim=24, layers=2).train(training)
        layers = [one or PositionalAttention(positions.sizes) for one in positions.attentions]
    with OnCuda():
        content, where = torch.empty(2, 6, 24, device=CUDA), grid_or_tokens(axes)
        draw, local = positions.draw(2, CUDA), (1 / 2, 1 / 3)[:axes] if training else None
        for mask in (None, torch.empty(2, 1, 6, device=CUDA, dtype=torch.bool)):
            x, given = positions(content, where, mask, draw, max_local_shift=local)
            assert (x.shape, x.device.type) == ((2, 6, 24), "cuda")
            x = x.unflatten(2, (3, 8)).transpose(1, 2)
            for layer in layers:
                for need_weights in (False, True):
                    out, _ = layer(x, x, x, given, 0.1 * training, need_weights)
                    assert (out.shape, out.device.type) == ((2, 3, 6, 8), "cuda")


def test_functions_stay_on_their_device(fake):
    with OnCuda():
        lengths = torch.empty(2, dtype=torch.long, device=CUDA)
        assert sinusoid_1d(token_positions(lengths, 6), 8).device.type == "cuda"
        assert sinusoid_2d(patch_grid(2, 3, device=CUDA), 8).device.type == "cuda"


def test_the_modes_find_what_they_are_for(fake):
    with OnCuda():
        values = torch.empty(2, device=CUDA)
        with pytest.raises(AssertionError):
            torch.zeros(2)
        for read in (torch.Tensor.item, torch.Tensor.tolist, lambda one: bool(one > 0)):
            with pytest.raises((DataDependentOutputException, RuntimeError)):
                read(values[0])
