"""What timm's ViT can do, our ViTs can do too; each through timm's or torch's public interface."""

import multiprocessing

import numpy as np
import pytest
import timm
import torch
from timm.models import create_feature_extractor
from timm.optim import param_groups_layer_decay
from torch._dynamo.testing import CompileCounter
from torch.nn.parallel import DistributedDataParallel

from timm_support import HOSTS

# at the input, in self-attention, and random
THREE = ["cape", "cape_rope", "random"]
# at the input: timm's own loops over the blocks; in self-attention: ours
BOTH_LOOPS = pytest.mark.parametrize("variant", ["cape", "cape_alibi"])


every_host = pytest.mark.parametrize("host", HOSTS)

# features


@BOTH_LOOPS
def test_features_only_gives_maps_of_rectangles(create, images, variant):
    features = create(variant, features_only=True, out_indices=(0, 1))
    assert [f.shape for f in features(images(2, 3, 64, 96))] == [(2, 32, 4, 6)] * 2
    assert features.feature_info.reduction() == [16, 16]


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(norm=True, indices=[1], stop_early=True),
        dict(indices=1, output_fmt="NLC", return_prefix_tokens=True),
        dict(indices=[0], stop_early=True, intermediates_only=True, return_prefix_tokens=True),
        dict(output_dict=True, return_prefix_tokens=True, norm=True),
        dict(output_dict=True, intermediates_only=True, output_fmt="NLC"),
        dict(attn_mask=torch.ones(26, 26).tril().bool()),
        dict(is_causal=True),
    ],
)
@pytest.mark.parametrize("class_token", [True, False])
def test_intermediates_have_the_form_of_timms(create, images, options, class_token):
    ours, timms = (
        create(variant, class_token=class_token, reg_tokens=1, global_pool="avg").eval()
        for variant in ("ropepos", "nopos")
    )
    for block in ours.blocks:
        block.attn.positional = None  # now both are timm's model without positions
    x = images(2, 3, 64, 96)
    if "attn_mask" in options and not class_token:
        options = dict(attn_mask=options["attn_mask"][1:, 1:])
    expected = timms.forward_intermediates(x, **options)
    torch.testing.assert_close(ours.forward_intermediates(x, **options), expected)
    masks = {name: value for name, value in options.items() if name in ("attn_mask", "is_causal")}
    found = ours.forward_features(x, **masks)
    torch.testing.assert_close(found, timms.forward_features(x, **masks))


@BOTH_LOOPS
def test_intermediates_see_the_positions(create, images, variant):
    model, x = create(variant).eval(), images(2, 3, 64, 96)
    final, maps = model.forward_intermediates(x, norm=True)
    assert torch.equal(final, model.forward_features(x))
    assert torch.equal(maps[-1].flatten(2).mT, final[:, 1:])
    ((patches, prefix),) = model.get_intermediate_layers(
        x, n=1, return_prefix_tokens=True, norm=True
    )
    assert torch.equal(torch.cat([prefix, patches], dim=1), final)
    model.prune_intermediate_layers([0])
    assert len(model.blocks) == 1
    (pruned,) = model.forward_intermediates(x, norm=True, intermediates_only=True)
    assert torch.equal(pruned, maps[0])


# training


def test_layer_decay_groups_parameters_as_timms_vit_does(create):
    stock = timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=32, num_heads=2)

    def scales(model):
        names = {id(p): n for n, p in model.named_parameters()}
        groups = param_groups_layer_decay(model, layer_decay=0.5)
        return {names[id(p)]: g["lr_scale"] for g in groups for p in g["params"]}

    ours, theirs = scales(create()), scales(stock)
    assert ours.pop("cls_pos_embed") == theirs.pop("pos_embed") == theirs["cls_token"]
    assert ours == theirs


# precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_host
@pytest.mark.parametrize("variant", ["cape", "ropepos", "cape_alibi"])
def test_half_precision_stays_close_to_float32(create, images, batch, variant, host, dtype):
    model, x = create(variant, host).eval(), images(2, 3, 160, 160)
    given = batch() if host == "naflexvit" else x
    with torch.no_grad():
        expected = model(given)
        with torch.autocast("cpu", dtype=dtype):
            found = [model(given)]
        model.to(dtype)
        halved = dict(given, patches=given["patches"].to(dtype)) if given is not x else x.to(dtype)
        for fused in (True, False):
            for block in model.blocks:
                block.attn.fused_attn = fused
            found.append(model(halved))
    assert found[1].dtype == found[2].dtype == dtype
    for out in found:
        assert (out.float() - expected).norm() < 0.05 * expected.norm()


@every_host
@pytest.mark.parametrize("variant", THREE)
def test_meta_device_construction_and_init_weights(create, images, variant, host):
    pooled = dict(class_token=True, global_pool="token")
    with torch.device("meta"):
        model = create(variant, host, embed_dim=192, num_heads=3, fresh=True, **pooled)
    model = model.to_empty(device="cpu")
    model.init_weights()
    own = getattr(model, "embeds", model).cls_pos_embed
    assert own is None if variant == "cape_rope" else 0.015 < own.std() < 0.025
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.eval()(images(1, 3, 32, 32)).isfinite().all()


# graphs


@pytest.mark.parametrize(("host", "variant"), [("vit", "cape"), ("naflexvit", "cape_rope")])
def test_torch_compile_needs_no_graph_break(create, images, batch, host, variant):
    model, x = create(variant, host, depth=1), images(2, 3, 32, 48)
    if host == "naflexvit":
        x = {name: one for name, one in batch().items() if name != "seq_len"}  # an int, unused
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.eval()
    torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    model.train()
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    second.sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@every_host
def test_torch_compile_makes_one_dynamic_graph_for_all_sizes(create, images, batch, host):
    # dynamic_img_pad: without it timm's own PatchEmbed makes a graph of each size
    model = create("univit", host, dynamic_img_pad=True, depth=1).train()
    inputs = [images(1, 3, size, size) for size in (128, 160, 192, 224, 256, 288, 320)]
    if host == "naflexvit":
        inputs = [batch(patches) for patches in (24, 36, 49, 64)]
        for given in inputs:
            del given["seq_len"]  # an int, unused
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    assert all(compiled(x).isfinite().all() for x in inputs)
    assert counter.frame_count <= 2  # the first size, then any size (known from an earlier test)


@pytest.mark.parametrize("variant", ["cape", "random_rope"])
def test_fx_traces_through_the_model_without_freezing_the_noise(create, images, variant):
    traced = create_feature_extractor(create(variant).train(), {"head": "logits"})
    x = images(2, 3, 224, 224)
    first, second = (next(iter(traced(x).values())) for _ in range(2))
    assert not torch.equal(first, second)


def test_onnx_export_in_evaluation_takes_any_size(create, images, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create("cape_rope", depth=1).eval()
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
        assert np.abs(out - model(x).detach().numpy()).max() < 1e-4


# several processes


def step(rank: int, folder, create) -> None:
    """A backward of three models in one of two processes."""
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=2)
    for variant in THREE:
        parallel = DistributedDataParallel(create(variant))
        torch.manual_seed(rank)  # as train.py seeds its processes
        out = parallel(torch.ones(2, 3, 32, 48))
        out.square().sum().backward()
        gradients = [parameter.grad for parameter in parallel.parameters()]
        torch.save((out.detach(), gradients), folder / f"{variant}-{rank}.pt")
    torch.distributed.destroy_process_group()


def test_ddp_trains_with_noise_of_its_own_in_each_process(create, tmp_path):
    context = multiprocessing.get_context("fork")  # torch and timm are imported already
    processes = [context.Process(target=step, args=(rank, tmp_path, create)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    for variant in THREE:
        ranks = (torch.load(tmp_path / f"{variant}-{rank}.pt") for rank in range(2))
        outputs, gradients = zip(*ranks, strict=True)
        assert not torch.equal(*outputs), "both processes drew the same noise"
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
