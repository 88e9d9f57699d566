"""Our models on a CUDA device that is not there: nothing is made on the CPU, nothing waits.

The core's modules of every variant are tested so in tests/test_cuda.py.
"""

import pytest
import torch

from cape_support import fakes_cuda, on_cuda
from timm_support import EVAS

pytestmark = fakes_cuda


def forward_on_cuda(model, given, dtype=torch.float32):
    """The model's output; autocast to a dtype but float32."""
    torch.set_autocast_dtype("cuda", dtype)  # torch.autocast looks for a driver
    torch.set_autocast_enabled("cuda", dtype != torch.float32)
    try:
        return on_cuda(model, given)
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize(("training", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
@pytest.mark.parametrize("variant", ["nopos", "cape", "cape_rope", "cape_alibi"])
def test_no_tensor_is_made_on_the_cpu_and_nothing_waits_for_the_device(
    create, images, batch, variant, training, dtype
):
    options = dict(depth=1, reg_tokens=1)
    keeps = {} if variant == "nopos" else dict(pos_embed_ar_preserving=training)
    padded = create(variant, "naflexvit", **options, **keeps)
    for model, given in ((create(variant, **options), images(2, 3, 32, 48)), (padded, batch())):
        out = forward_on_cuda(model.train(training), given, dtype)
        assert out.shape == (2 if model is not padded else 3, 10)
        assert (out.device.type, out.dtype) == ("cuda", dtype)


@pytest.mark.parametrize("name", EVAS.values())
def test_timms_rotary_models_neither_in_training(create, images, name):
    model = create(name, "eva", patch_drop_rate=0.5, drop_path_rate=0.1)
    assert forward_on_cuda(model, images(2, 3, 64, 96)).device.type == "cuda"
