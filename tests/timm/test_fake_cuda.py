"""Every variant on a CUDA device that is not there: shapes, dtypes and devices alone are computed.

FakeTensorMode refuses a tensor that the forward makes on the CPU, and whatever waits for the
device's values: ``.item()``, ``.tolist()``, ``bool(tensor)``. Only forwards run there.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.func import functional_call

from cape_plugins.timm.registry import variants_by_name

pytestmark = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch without CUDA")

VARIANTS = [name for name, given in variants_by_name().items() if given.keys() == {"pos"}]


def forward_on_cuda(model, given, dtype=torch.float32):
    """The model's output, all tensors fake ones on CUDA; autocast to a dtype but float32."""
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    torch.set_autocast_dtype("cuda", dtype)  # torch.autocast looks for a driver
    torch.set_autocast_enabled("cuda", dtype != torch.float32)
    try:
        with FakeTensorMode() as mode:

            def move(one):
                return mode.from_tensor(one).to("cuda") if isinstance(one, torch.Tensor) else one

            weights = {name: move(weight) for name, weight in weights.items()}
            if isinstance(given, dict):
                given = {name: move(one) for name, one in given.items()}
            return functional_call(model, weights, (move(given),))
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_tensor_is_made_on_the_cpu_and_nothing_waits_for_the_device(
    create, images, batch, variant, training, dtype
):
    options = dict(attention_logn=20, depth=1, reg_tokens=1)
    keeps = {} if variant == "nopos" else dict(pos_embed_ar_preserving=training)
    padded = create(variant, "naflexvit", **options, **keeps)
    for model, given in ((create(variant, **options), images(2, 3, 32, 48)), (padded, batch())):
        out = forward_on_cuda(model.train(training), given, dtype)
        assert out.shape == (2 if model is not padded else 3, 10)
        assert (out.device.type, out.dtype) == ("cuda", dtype)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch16_rope_cape_224",
        "vit_pe_core_tiny_patch16_cape_384",
        "vit_small_patch16_dinov3_cape",
        "vit_small_patch16_rope_mixed_cape_224",
    ],
)
def test_so_do_timms_rotary_models(create, images, name, training):
    model = create(name, "eva", patch_drop_rate=0.5, drop_path_rate=0.1).train(training)
    assert forward_on_cuda(model, images(2, 3, 64, 96)).device.type == "cuda"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda x: x + torch.ones(3), RuntimeError),  # two devices
        (lambda x: x * x.sum().item(), DataDependentOutputException),
        (lambda x: x * x.tolist()[0][0], DataDependentOutputException),
        (lambda x: x if x.sum() > 0 else -x, DataDependentOutputException),
        (lambda x: x[x > 0], DynamicOutputShapeException),
    ],
)
def test_such_faults_are_found(fault, error):
    class Faulty(torch.nn.Linear):
        def forward(self, x):
            return fault(super().forward(x))

    with pytest.raises(error):
        forward_on_cuda(Faulty(3, 3), torch.ones(2, 3))
