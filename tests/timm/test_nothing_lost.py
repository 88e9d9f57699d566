"""What timm's ViT can do, our ViTs can do too; each through timm's or torch's public interface."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

timm = pytest.importorskip("timm")

from timm.optim import create_optimizer_v2, param_groups_layer_decay  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins import patch_grid  # noqa: E402
from cape_plugins.augment import AsGiven  # noqa: E402
from cape_plugins.timm.registry import variants_by_name  # noqa: E402
from cape_plugins.variants import get  # noqa: E402

NAMED = tuple(variants_by_name())
VARIANTS = tuple(name for name in NAMED if name != "univit")
AUGMENTS = tuple(n for n, args in variants_by_name().items() if get(args["pos"]).augment != AsGiven)
SMALL = dict(depth=2, num_classes=10)


def create(variant: str = "cape", **kwargs) -> torch.nn.Module:
    return timm.create_model(f"vit_tiny_patch16_{variant}_224", **{**SMALL, **kwargs})


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# features


def test_features_only_gives_maps_of_rectangles():
    features = timm.create_model(
        "vit_tiny_patch16_cape_224", depth=2, features_only=True, out_indices=(0, 1)
    )
    assert [f.shape for f in features(images(2, 3, 64, 96))] == [(2, 192, 4, 6)] * 2
    assert features.feature_info.reduction() == [16, 16]


def test_forward_intermediates_sees_the_positions():
    model, x = create().eval(), images(2, 3, 64, 96)
    final, maps = model.forward_intermediates(x, norm=True)
    assert torch.equal(final, model.forward_features(x))
    assert torch.equal(maps[-1].flatten(2).mT, final[:, 1:])


def test_get_intermediate_layers_gives_patches_and_class_token():
    model, x = create().eval(), images(2, 3, 64, 96)
    ((patches, prefix),) = model.get_intermediate_layers(x, n=1, return_prefix_tokens=True)
    assert torch.equal(
        torch.cat([prefix, patches], dim=1), model.blocks(model._pos_embed(model.patch_embed(x)))
    )


# training


def test_patch_drop_rate_drops_patches_in_training_only():
    model, seen = create(patch_drop_rate=0.5), []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    model.train()(images(1, 3, 64, 64))
    model.eval()(images(1, 3, 64, 64))
    assert seen == [1 + 8, 1 + 16]


def test_gradient_checkpointing_changes_no_gradient():
    x, gradients = images(2, 3, 64, 64), []
    model = create().train()
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        torch.manual_seed(1)  # the same draws
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_every_parameter_gets_a_gradient():
    model = create()
    model(images(2, 3, 32, 32)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_the_class_tokens_position_is_not_decayed():
    model = create()
    assert "cls_pos_embed" in model.no_weight_decay()
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.05)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay[id(model.cls_pos_embed)] == 0.0
    assert decay[id(model.head.weight)] == 0.05


def test_layer_decay_groups_parameters_as_timms_vit_does():
    stock = timm.create_model("vit_tiny_patch16_224", **SMALL)

    def scales(model):
        names = {id(p): n for n, p in model.named_parameters()}
        groups = param_groups_layer_decay(model, layer_decay=0.5)
        return {names[id(p)]: g["lr_scale"] for g in groups for p in g["params"]}

    ours, theirs = scales(create()), scales(stock)
    assert ours.pop("cls_pos_embed") == theirs.pop("pos_embed") == theirs["cls_token"]
    assert ours == theirs


def test_reset_classifier_changes_head_and_pooling():
    model, x = create().eval(), images(1, 3, 32, 48)
    model.reset_classifier(7, "avg")
    assert model(x).shape == (1, 7)
    model.reset_classifier(0)
    assert model(x).shape == (1, 192)


# input


def test_set_input_size_changes_grid_and_patches():
    model = create(dynamic_img_size=False).eval()
    with pytest.raises(AssertionError, match="doesn't match model"):
        model(images(1, 3, 96, 160))
    model.set_input_size(img_size=(96, 160))
    assert model.patch_embed.grid_size == (6, 10)
    flexible = create().eval()
    flexible.load_state_dict(model.state_dict())
    x = images(1, 3, 96, 160)
    torch.testing.assert_close(model(x), flexible(x))
    flexible.set_input_size(patch_size=8)
    assert flexible.forward_features(x).shape == (1, 1 + 12 * 20, 192)


@pytest.mark.parametrize("in_chans", [1, 4])
def test_other_numbers_of_channels_work(in_chans):
    assert create(in_chans=in_chans)(images(1, in_chans, 32, 32)).shape == (1, 10)


def test_channels_last_changes_nothing():
    model, x = create().eval(), images(2, 3, 64, 96)
    expected = model(x)
    out = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


# precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_to_float32(dtype):
    model, x = create().eval(), images(2, 3, 160, 160)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=dtype):
            torch.testing.assert_close(model(x).float(), expected, atol=2e-2, rtol=0)
        out = model.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=0)


def test_meta_device_construction_and_init_weights():
    with torch.device("meta"):
        model = create()
    model = model.to_empty(device="cpu")
    model.init_weights()
    assert 0.015 < model.cls_pos_embed.std() < 0.025
    assert model.eval()(images(1, 3, 32, 32)).isfinite().all()


# graphs


@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_compile_needs_no_graph_break_in_training_and_evaluation(variant):
    model, x = create(variant), images(2, 3, 32, 48)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.eval()
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)
    model.train()
    first, second = compiled(x), compiled(x)
    assert torch.equal(first, second) == (variant not in AUGMENTS)
    second.sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_the_fused_operator_promises_compilers_the_strides_it_gives():
    # timm's patches come transposed; inductor fails on a broken promise, aot_eager does not
    patches = create("sinpos").patch_embed(images(2, 3, 32, 48)).flatten(1, 2).detach()
    assert patches.stride(2) != 1
    positions, add = patch_grid(2, 3)[None], torch.ops.cape_plugins.add_sinusoid
    given = add(patches, positions, 10_000.0, 1.0)
    promised = add(patches.to("meta"), positions.to("meta"), 10_000.0, 1.0)
    assert given.stride() == promised.stride()


def test_torch_compile_makes_one_dynamic_graph_for_univits_seven_sizes():
    # dynamic_img_pad: without it timm's own PatchEmbed makes a graph of each size
    model = create("univit", dynamic_img_pad=True, depth=1).train()
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for size in (128, 160, 192, 224, 256, 288, 320):
        assert compiled(images(1, 3, size, size)).isfinite().all()
    assert counter.frame_count <= 2  # the first size, then any size (known from an earlier test)


@pytest.mark.parametrize("variant", VARIANTS)
def test_torchscript_takes_any_size_or_says_what_to_use_instead(variant):
    with timm.set_scriptable(True):
        model = create(variant).eval()
    if get(model.position.pos).attention is not None:
        with pytest.raises(ValueError, match=r"torch.jit.script cannot compile .*: use torch"):
            torch.jit.script(model)
        return
    scripted = torch.jit.script(model)
    for size in ((224, 224), (64, 96)):
        x = images(2, 3, *size)
        torch.testing.assert_close(scripted(x), model(x), atol=1e-5, rtol=1e-5)


def test_torchscript_augments_in_training_and_has_gradients():
    with timm.set_scriptable(True):
        scripted = torch.jit.script(create().train())
    x = images(2, 3, 64, 96)
    first, second = scripted(x), scripted(x)
    assert not torch.equal(first, second)
    second.sum().backward()
    assert [n for n, p in scripted.named_parameters() if p.grad is None] == []


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_jit_trace_gives_the_same_output(variant):
    model, x = create(variant).eval(), images(2, 3, 64, 96)
    with timm.set_exportable(True):
        traced = torch.jit.trace(model, x, check_trace=False)
    y = images(3, 3, 64, 96)
    torch.testing.assert_close(traced(y), model(y), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", AUGMENTS)
def test_fx_traces_through_the_model_without_freezing_the_noise(variant):
    from timm.models import create_feature_extractor

    traced = create_feature_extractor(create(variant).train(), {"head": "logits"})
    x = images(2, 3, 224, 224)
    first, second = (next(iter(traced(x).values())) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("variant", ["cape", "cape_rope", "ropepos_mixed", "alibi", "random"])
def test_onnx_export_in_evaluation_takes_any_size(variant, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create(variant).eval()
    height, width = torch.export.Dim("h", min=2, max=40), torch.export.Dim("w", min=2, max=40)
    torch.onnx.export(
        model,
        (images(2, 3, 64, 96),),
        tmp_path / "model.onnx",
        dynamo=True,
        dynamic_shapes={"x": {0: torch.export.Dim("b"), 2: 16 * height, 3: 16 * width}},
        verbose=False,
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for shape in ((3, 3, 64, 96), (1, 3, 160, 224)):
        x = images(*shape)
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert np.abs(out - model(x).detach().numpy()).max() < 1e-5


# several processes

STEP = """
import sys, torch, timm, cape_plugins.timm
from torch.distributed import all_gather_object, init_process_group
from torch.nn.parallel import DistributedDataParallel

rank, rendezvous, variant = int(sys.argv[1]), *sys.argv[2:]
init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
torch.manual_seed(0)
model = timm.create_model(f"vit_tiny_patch16_{variant}_224", depth=2, num_classes=10)
parallel = DistributedDataParallel(model)
torch.manual_seed(rank)  # as train.py seeds its processes
x = torch.ones(2, 3, 32, 48)
out = parallel(x)
out.square().sum().backward()
torch.optim.SGD(model.parameters(), 0.1).step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
found = [None, None]
all_gather_object(found, (weights, out.detach()))
(weights0, out0), (weights1, out1) = found
assert torch.equal(weights0, weights1), "the processes' weights differ after a step"
assert not torch.equal(out0, out1), "both processes drew the same noise"
print("stepped", rank)
"""


@pytest.mark.parametrize("variant", ["cape", "cape_rope_mixed"])
def test_ddp_trains_with_noise_of_its_own_in_each_process(variant, tmp_path):
    command = [sys.executable, "-c", STEP]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), f"file://{tmp_path}/rendezvous", variant],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        assert f"stepped {rank}" in out
