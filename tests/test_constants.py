"""Constants are made once for each device, and only where they can be used again."""

import pytest
import torch
from cape_plugins.constants import constant
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from cape_plugins import PositionalEmbedding, constants


@pytest.fixture(autouse=True)
def none_is_made(monkeypatch):
    monkeypatch.setattr(constants, "_MADE", {})


def ramp(steps: int, device: torch.device) -> torch.Tensor:
    return torch.arange(float(steps), device=device)


def embed(**options) -> torch.Tensor:
    module = PositionalEmbedding(8, "cape", max_local_shift=0.5, **options)
    return module(torch.zeros(2, 5, 8), torch.arange(5.0)[None])


def test_they_are_made_once_for_the_same_settings():
    like = torch.zeros(1)
    assert constant(ramp, 3, like=like) is constant(ramp, 3, like=like)
    assert constant(ramp, 4, like=like).tolist() == [0, 1, 2, 3]
    assert constant(ramp, 3, like=torch.zeros(1, device="meta")).device.type == "meta"


def test_an_embedding_makes_its_own_in_the_first_forward_alone():
    embed()
    first = dict(constants._MADE)
    assert first
    embed()
    assert constants._MADE.keys() == first.keys()
    embed(frequency_scale=2.0)
    assert len(constants._MADE) == len(first) + 1


def test_those_of_inference_mode_serve_a_later_training():
    with torch.inference_mode():
        embed()
    positions = torch.arange(5.0)[None].requires_grad_()
    module = PositionalEmbedding(8, "cape", max_local_shift=0.5)
    module(torch.zeros(2, 5, 8), positions).square().sum().backward()
    assert positions.grad.isfinite().all()


def test_fake_tensors_get_fake_ones_and_leave_none_behind():
    embed()
    with FakeTensorMode():
        assert isinstance(embed(), FakeTensor)
    assert not any(isinstance(made, FakeTensor) for made in constants._MADE.values())
    assert not isinstance(embed(), FakeTensor)


def test_code_that_is_compiled_or_transformed_keeps_none():
    torch.compile(embed, backend="aot_eager")()
    positions = torch.arange(10.0).view(2, 1, 5)
    torch.vmap(lambda p: PositionalEmbedding(8, "sinpos")(torch.zeros(2, 5, 8), p))(positions)
    assert not constants._MADE


def test_settings_that_change_at_every_step_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr(constants, "_MOST", 3)
    for step in range(10):
        assert len(constant(ramp, step, like=torch.zeros(1))) == step
    assert len(constants._MADE) == 3
