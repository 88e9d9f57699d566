"""Convolutions and batch norms in ESPnet's layers see no padding."""

import copy

import pytest
import torch
from torch import nn

from cape_plugins.espnet.padding import MaskedBatchNorm1d, MaskedConv1d, running
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


@pytest.fixture
def padded():
    """As in a layer with utterances of 11, 4 and 7 frames: its (3, 1, 11) mask."""
    running.mask = torch.arange(11) < torch.tensor([11, 4, 7])[:, None, None]
    yield running.mask
    running.mask = None


def test_batch_norm_learns_from_real_frames_alone(padded):
    theirs, ours = nn.BatchNorm1d(5), MaskedBatchNorm1d(5)
    x = 2 + torch.randn(3, 5, 11, generator=seeded())
    real = x.transpose(1, 2)[padded[:, 0]]  # (22, 5), without padding
    expected = theirs(real)
    found = ours(x.masked_fill(~padded, 1e3))
    torch.testing.assert_close(found.transpose(1, 2)[padded[:, 0]], expected)
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, theirs.get_buffer(name))


def test_a_convolution_sees_zeros_in_padding_as_beyond_the_end(padded):
    ours = MaskedConv1d(5, 2, kernel_size=3, padding=1)
    x = torch.randn(3, 5, 11, generator=seeded())
    found = ours(x.masked_fill(~padded, 1e3))
    for row, length in enumerate(padded.sum(dim=(1, 2)).tolist()):
        alone = nn.functional.conv1d(x[row, None, :, :length], ours.weight, ours.bias, padding=1)
        torch.testing.assert_close(found[row, None, :, :length], alone)
