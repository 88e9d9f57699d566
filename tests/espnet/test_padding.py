"""Convolutions and batch norms in ESPnet's layers see no padding."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("espnet2")

from cape_plugins.espnet.padding import MaskedBatchNorm1d, running
from cape_support import seeded


@pytest.fixture
def no_padding():
    """As in a layer whose utterances are of one length."""
    running.mask = torch.ones(3, 1, 11, dtype=torch.bool)
    yield
    running.mask = None


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])  # None: the average of all batches so far
def test_batch_norm_without_padding_is_pytorchs_whatever_its_momentum(momentum, no_padding):
    theirs, ours = (kind(5, momentum=momentum) for kind in (nn.BatchNorm1d, MaskedBatchNorm1d))
    for norm in (theirs, ours):
        nn.init.normal_(norm.weight, generator=seeded(1))
        nn.init.normal_(norm.bias, generator=seeded(2))
    before = copy.deepcopy(ours)
    for seed in range(3):
        x = 2 + seed + torch.randn(3, 5, 11, generator=seeded(seed))
        torch.testing.assert_close(ours.train()(x), theirs.train()(x))
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, theirs.get_buffer(name))
        assert not buffer.equal(before.get_buffer(name))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
