"""Nothing of one forward is kept for another: variants of each kind, in our four encoders."""

import copy
import functools
import pickle

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)

from cape_plugins.places import frame_times
from cape_support import in_turns, replica
from espnet_support import batch, each_kind, make


def checkpointed(encoder):
    """What users wrap: its layers, and ESPnet's subsampling."""
    wrapped = {*encoder.encoders, encoder.embed}
    apply_activation_checkpointing(encoder, check_fn=lambda module: module in wrapped)
    return encoder


def step(encoder, between: bool = False) -> list[torch.Tensor]:
    """Two forwards of other lengths and times before one backward; the gradients."""
    torch.manual_seed(3)
    loss = 0.0
    for lengths, shift in (((60, 37), 0.01), ((90, 22), 0.02)):
        features, counts = batch(*lengths)
        times = frame_times(counts, shift, dtype=torch.float64)
        out, olens, _ = encoder.train()(features, counts, times=times)
        weights = torch.arange(out.numel()).reshape(out.shape).cos()
        loss = loss + (out * weights)[torch.arange(out.shape[1]) < olens[:, None]].sum()
    if between:
        with torch.no_grad():
            encoder.eval()(*batch(44, 44, 13))
        encoder.train()
    loss.backward()
    return [parameter.grad for parameter in encoder.parameters()]


@each_kind
def test_two_forwards_an_evaluation_and_copies_before_one_backward(name, pos):
    encoder = make(name, pos)
    expected = step(copy.deepcopy(encoder))
    for between in (False, True):
        found = step(checkpointed(copy.deepcopy(encoder)), between)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@each_kind
def test_no_module_keeps_a_tensor_and_copies_are_made_in_the_middle(name, pos):
    encoder = make(name, pos)
    inputs = batch(60, 37)
    expected = encoder.eval()(*inputs)[0]
    loss = encoder.train()(*inputs)[0].square().sum()
    kept = [item for module in encoder.modules() for item in vars(module).items()]
    assert [key for key, value in kept if isinstance(value, torch.Tensor)] == []
    copies = copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))
    loss.backward()
    for each in copies:
        assert all(parameter.grad is None for parameter in each.parameters())
        if name != "cape_conformer":  # whose batch norm has learned
            torch.testing.assert_close(each.eval()(*inputs)[0], expected)


def call(encoder, features, counts, times) -> torch.Tensor:
    return encoder(features, counts, times=times)[0]


@each_kind
def test_two_threads_and_two_replicas_give_what_one_gives(name, pos):
    encoder = make(name, pos).eval()
    inputs = []
    for lengths, shift in (((60, 37), 0.01), ((60, 22), 0.03)):
        features, counts = batch(*lengths)
        times = frame_times(counts, shift, dtype=torch.float64)
        inputs.append(functools.partial(call, features=features, counts=counts, times=times))
    expected = [each(encoder) for each in inputs]
    for encoders in ([encoder, encoder], [replica(encoder), replica(encoder)]):
        for found, out in zip(in_turns(encoders, inputs), expected, strict=True):
            torch.testing.assert_close(found, out)
