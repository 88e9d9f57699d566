"""No forward of ours makes a tensor on the CPU or waits for a GPU: seen on fake CUDA tensors.

What ESPnet's own code does of the kind is replaced here: E-Branchformer and Branchformer draw on
the CPU which layers are dropped, and Branchformer makes its mask by the longest length.
"""

import sys
import types

import pytest
import torch
from espnet2.asr.encoder import branchformer_encoder, e_branchformer_encoder
from torch._subclasses.fake_tensor import DataDependentOutputException

from cape_support import fakes_cuda, on_cuda
from espnet_support import batch, each_kind, make

pytestmark = fakes_cuda


class Kept:
    """In place of ``torch.empty(n)``, of which ESPnet makes random numbers: no layer is dropped."""

    def uniform_(self):
        return self

    def item(self):
        return 1.0

    def __getitem__(self, index):
        return 1.0


@pytest.fixture
def without_espnets_waits(monkeypatch):
    shim = types.SimpleNamespace(**{**vars(torch), "empty": lambda *_: Kept()})
    repeat = sys.modules[type(make("cape_branchformer").encoders).__module__]
    for module in (e_branchformer_encoder, repeat):
        monkeypatch.setattr(module, "torch", shim)

    def pad_mask(lengths):
        return torch.arange(14, device=lengths.device) >= lengths[:, None]

    monkeypatch.setattr(branchformer_encoder, "make_pad_mask", pad_mask)


@pytest.mark.parametrize("training", [True, False])
@each_kind
def test_nothing_waits_for_the_device(name, pos, training, without_espnets_waits):
    options = {"layer_drop_rate": 0.2} if name == "cape_transformer" else {}
    encoder = make(name, pos, dropout_rate=0.1, **options).train(training)
    frames = 20 if name == "cape_transformer" else 14
    extra = {} if training else {"times": torch.zeros(2, 60, dtype=torch.float64)}
    out, lengths, _ = on_cuda(encoder, *batch(60, 40), **extra)
    assert out.shape == (2, frames, 16)
    assert out.device.type == lengths.device.type == "cuda"


def test_a_wait_would_be_seen():
    for wait in (lambda x: x.max().item(), lambda x: bool(x.any()), lambda x: x.tolist()):
        encoder = make()
        encoder.embed.register_forward_pre_hook(lambda _, given, wait=wait: wait(given[0]))
        with pytest.raises(DataDependentOutputException):
            on_cuda(encoder, *batch(60, 40))
