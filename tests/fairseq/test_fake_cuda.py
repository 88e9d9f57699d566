"""Every variant on fake CUDA tensors: nothing is made on the CPU, nothing waits for the device.

Fake tensors have a device and a shape but no values: .item(), .tolist() and bool() of one raise,
and so does an operation on tensors of two devices. fairseq itself asks whether there is any padding
(``has_pads`` in its encoder, an ``if`` in its decoder): these two waits are answered here.
"""

import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("fairseq")

from cape_plugins.variants import names

pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.6" and not torch.cuda.is_available(),
    reason="fake CUDA tensors of torch 2.5 ask a real driver",
)

FAIRSEQS = ("transformer/transformer_encoder.py", "transformer/transformer_decoder.py")
CASES = [("translation", pos, {}) for pos in names(1)]
CASES += [("language model", pos, {}) for pos in ("cape", "relpos", "rope", "random")]
CASES += [("translation", "sinpos", {"attention_logn": 20})]


class OnTheDevice(TorchDispatchMode):
    """Refuses what makes a tensor elsewhere."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            # fairseq's: torch.tensor(False), torch.empty([0])
            if isinstance(tensor, torch.Tensor) and tensor.numel() and tensor.dtype != torch.bool:
                assert tensor.device.type == "cuda", f"{operation} makes a tensor on the CPU"
        return out


@pytest.fixture
def has_padding(monkeypatch):
    """Answer fairseq's own question."""
    wait = torch.Tensor.__bool__

    def put(answer):
        def ask(tensor):
            if sys._getframe(1).f_code.co_filename.endswith(FAIRSEQS) and tensor.is_cuda:
                return answer
            return wait(tensor)

        monkeypatch.setattr(torch.Tensor, "__bool__", ask)

    return put


def on_cuda(model, call):
    """Call something with the model, whose weights are on a device that is not there."""
    with FakeTensorMode():
        weights = {
            f"model.{name}": torch.empty(t.shape, dtype=t.dtype, device="cuda")
            for name, t in [*model.named_parameters(), *model.named_buffers()]
        }
        source, target = (torch.full(shape, 5, device="cuda") for shape in ((3, 7), (3, 6)))
        with OnTheDevice():
            return torch.func.functional_call(Calling(model, call), weights, (source, target))


class Calling(torch.nn.Module):
    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args):
        return self.call(self.model, *args)


def at_once(model, source, target):
    return model(source, None, target) if hasattr(model, "encoder") else model(target)


def step(model, source, target):
    """The second step of decoding."""
    encoder_out = model.encoder(source) if hasattr(model, "encoder") else None
    state = {}
    for length in (1, 2):
        out = model.decoder(target[:, :length], encoder_out, incremental_state=state)
    return out


@pytest.mark.parametrize(
    ("way", "dtype", "padded"),
    [
        ("training", torch.float32, True),
        ("evaluation", torch.float16, False),
        ("step", torch.float16, True),
    ],
)
@pytest.mark.parametrize(("kind", "pos", "options"), CASES)
def test_no_variant_waits_for_the_device(
    build, build_lm, has_padding, kind, pos, options, way, dtype, padded
):
    has_padding(padded)
    build = build if kind == "translation" else build_lm
    model = build(pos, train=way == "training", **options).to(dtype)
    out, _ = on_cuda(model, step if way == "step" else at_once)
    assert (out.device.type, out.dtype) == ("cuda", dtype)
    assert out.shape[:2] == ((3, 1) if way == "step" else (3, 6))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda model, source, target: source.max().item(), Exception),
        (lambda model, source, target: source.tolist(), Exception),
        (lambda model, source, target: bool(source.any()), Exception),
        (lambda model, source, target: torch.arange(7) + source, Exception),
        (lambda model, source, target: torch.tensor([1.0, 2.0]).to(source.device), AssertionError),
    ],
)
def test_the_check_notices(build, call, error):
    with pytest.raises(error):
        on_cuda(build("nopos"), call)
