"""Our models on fake CUDA tensors: nothing is made on the CPU, nothing waits for the device.

fairseq itself asks whether there is any padding (``has_pads`` in its encoder, an ``if`` in its
decoder): these two waits are answered here.
"""

import sys

import pytest
import torch

from cape_support import fakes_cuda, on_cuda

pytestmark = fakes_cuda

FAIRSEQS = ("transformer/transformer_encoder.py", "transformer/transformer_decoder.py")
LM = {"arch": "cape_transformer_lm"}
CASES = [(pos, {}) for pos in ("abspos", "cape", "relpos", "cape_rope", "alibi")]
CASES += [(pos, LM) for pos in ("cape", "relpos")]
SOURCE, TARGET = torch.full((3, 7), 5), torch.full((3, 6), 5)


def of_fairseq(made):
    return not made.numel() or made.dtype == torch.bool  # torch.tensor(False), torch.empty([0])


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
@pytest.mark.parametrize(("pos", "options"), CASES)
def test_no_variant_waits_for_the_device(build, monkeypatch, pos, options, way, dtype, padded):
    wait = torch.Tensor.__bool__

    def ask(tensor):
        if sys._getframe(1).f_code.co_filename.endswith(FAIRSEQS) and tensor.is_cuda:
            return padded
        return wait(tensor)

    monkeypatch.setattr(torch.Tensor, "__bool__", ask)
    model = build(pos, train=way == "training", **options).to(dtype)
    call = step if way == "step" else at_once
    out, _ = on_cuda(model, SOURCE, TARGET, but_for=of_fairseq, call=call)
    assert (out.device.type, out.dtype) == ("cuda", dtype)
    assert out.shape[:2] == ((3, 1) if way == "step" else (3, 6))
