"""timm's rotary ViTs under CAPE: the same models, but for the coordinates in training."""

import math

import pytest
import timm
import torch
from scipy import stats
from timm.layers import get_mixed_freqs
from timm.models import create_feature_extractor, save_for_hf
from timm.models import eva as timm_eva
from torch import Tensor, nn

from cape_plugins import fused
from cape_plugins.timm import eva
from cape_plugins.timm.eva import TWINS
from cape_support import cape
from timm_support import EVAS, STILL

OFF = eva.CoordinateAugmentation(cape(mean_normalize=False), True)
every_kind = pytest.mark.parametrize("kind", EVAS)


def create(name: str, perturbed: bool = True, **options) -> nn.Module:
    torch.manual_seed(0)
    name = EVAS.get(name, name)
    small = dict(embed_dim=64, depth=2, num_heads=2, num_classes=5, dynamic_img_size=True)
    small |= dict(num_kv_heads=1) if "sapiens2" in name else {}  # of theirs there is one a layer
    small |= dict(img_size=64 if "patch16" in name else 56)
    model = timm.create_model(name, **{**small, **options})
    for parameter in model.parameters() if perturbed else []:
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def pair(name: str, **options) -> tuple[nn.Module, nn.Module]:
    """timm's model and ours with its weights."""
    ours, stock = create(name, False, **options), create(TWINS[EVAS.get(name, name)])
    ours.load_state_dict(stock.state_dict())  # strictly
    return stock, ours


def images(height: int = 64, width: int = 96, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(height * width)
    return torch.randn(batch, 3, height, width, generator=generator)


def assert_close(found, expected, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def assert_equal(found, expected) -> None:
    assert_close(found, expected, 0)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def test_every_rotary_eva_of_timm_has_a_twin_and_no_other_has():
    timms = {*timm.list_models(module="eva")} - {*TWINS}
    rotary = {name for name in timms if create(name, False).rope is not None}
    assert rotary == {*TWINS.values()}
    assert len(TWINS) == len(rotary) == 60
    assert set(timm.list_models("*_cape*", module="eva")) == {*TWINS}
    assert "vit_base_patch16_rope_cape_224" in TWINS
    assert TWINS["vit_small_patch16_dinov3_qkvb_cape"] == "vit_small_patch16_dinov3_qkvb"


def test_a_twin_has_the_tags_and_weights_of_timms_model():
    for ours, stock in TWINS.items():
        names = [timm.list_models(f"{one}.*", include_tags=True) for one in (ours, stock)]
        assert [one.replace(ours, stock) for one in names[0]] == names[1]
        for one, other in zip([ours, *names[0]], [stock, *names[1]], strict=True):
            cfgs = [timm.get_pretrained_cfg(each).to_dict() for each in (one, other)]
            assert [cfg.pop("architecture") for cfg in cfgs] == [ours, stock]
            assert cfgs[0] == cfgs[1]
            assert timm.is_model_pretrained(one) == timm.is_model_pretrained(other)
    tagged = create("vit_small_patch16_dinov3_cape.lvd1689m").pretrained_cfg
    assert (tagged["architecture"], tagged["tag"]) == ("vit_small_patch16_dinov3_cape", "lvd1689m")


@pytest.mark.parametrize("name", TWINS)
def test_every_name_is_timms_model_but_for_the_coordinates(name):
    stock, ours = (one.eval() for one in pair(name))
    assert ours.state_dict().keys() == stock.state_dict().keys()
    assert type(stock) is timm_eva.Eva
    assert isinstance(ours, timm_eva.Eva)
    patch = ours.patch_embed.patch_size[0]
    with torch.no_grad():
        for height, width in ((4, 4), (6, 3), (2, 9)):
            x = images(height * patch, width * patch)
            assert_equal(ours(x), stock(x))
    stock.train().rope.aug_active = False  # Sapiens2's
    augmented, ours.augmentation = ours.train()(x), OFF
    expected = stock(x)
    assert_close(ours(x), expected)
    assert not torch.allclose(augmented, expected, rtol=1e-4, atol=1e-4)
    augmented.square().sum().backward()
    expected.sum().backward()
    found = gradients(ours)
    assert found.keys() == gradients(stock).keys()
    assert all(one.isfinite().all() for one in found.values())
    assert ours.no_weight_decay() == stock.no_weight_decay()


@every_kind
def test_a_grid_with_an_offset_is_augmented_about_timms_own_coordinates(kind):
    ours = create(kind, False, rope_grid_offset=0.3, **STILL)
    stock = create(TWINS[EVAS[kind]], rope_grid_offset=0.3)
    ours.load_state_dict(stock.state_dict())
    without = create(TWINS[EVAS[kind]])
    without.load_state_dict(stock.state_dict())
    expected = stock.train()(images())
    assert_close(ours.train()(images()), expected)
    if kind == "dinov3":  # others see distances alone, which an offset does not change
        assert not torch.allclose(without.train()(images()), expected, rtol=1e-4, atol=1e-4)


def into_last_block(model: nn.Module, x: Tensor) -> Tensor:
    """What turns queries and keys of the last block."""
    seen = []
    hook = model.blocks[-1].register_forward_pre_hook(
        lambda _, given, named: seen.append(named["rope"]), with_kwargs=True
    )
    model(x)
    hook.remove()
    return seen[0]


def moved(**options) -> tuple[Tensor, Tensor]:
    """Coordinates of 3 × 5 patches before and after: (15, 2), (3000, 15, 2)."""
    model, seen = create("dinov3", **{**STILL, **options}).train(), []
    model.augmentation.register_forward_hook(lambda _, given, made: seen.append(given[0]))
    model(images(48, 80))
    torch.manual_seed(1)
    return seen[0][0], model.augmentation(seen[0], 3000, 3, 5)


def assert_uniform(values: Tensor, bound: float) -> None:
    uniform = stats.uniform(-bound, 2 * bound).cdf
    assert stats.kstest(values.flatten().numpy(), uniform).pvalue > 1e-3


def test_the_augmented_coordinates_have_the_papers_distributions():
    grid = [[(2 * i - 2) / 3, (2 * j - 4) / 5] for i in range(3) for j in range(5)]
    before, after = moved()
    assert_close(before, torch.tensor(grid))
    assert_close(after, before.expand_as(after))
    for options, bounds in (
        (dict(max_global_shift=0.5), (0.5, 0.5)),
        (dict(max_local_shift=None), (1 / 3, 1 / 5)),  # half a patch
        (dict(max_local_shift=(0.3, 0.1)), (0.3, 0.1)),
    ):
        before, after = moved(**options)
        shift, is_global = after - before, "max_global_shift" in options
        for axis in (0, 1):
            assert_uniform(shift[:, 1, axis], bounds[axis])
        assert torch.allclose(shift, shift[:, :1], atol=1e-4) == is_global
        independent = shift[:, 0] if is_global else shift[:, :2, 0]
        assert abs(torch.corrcoef(independent.T)[0, 1]) < 0.06
    before, after = moved(max_global_scale=1.4)
    scale = after[:, 0] / before[0]
    assert_close(after, before * scale[:, None, :1])
    assert_uniform(scale[:, 0].log() / math.log(1.4), 1.0)
    default = create("dinov3").augmentation.augmentation
    assert (default.max_global_shift, default.max_global_scale) == (0.5, 1.4)


@every_kind
def test_half_precision_rotates_by_coordinates_of_float32(kind):
    model, embeddings = create(kind).train(), []
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        torch.manual_seed(4)
        embeddings.append(into_last_block(model, images().to(dtype)))
        model(images().to(dtype)).sum().backward()
    assert [one.dtype for one in embeddings] == [torch.float32] * 2
    if kind != "mixed":  # whose frequencies are parameters
        assert torch.equal(*embeddings)
    assert all(one.isfinite().all() for one in gradients(model).values())
    with torch.autocast("cpu", torch.bfloat16):
        assert model.float()(images()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["cat_reference", "mixed"])
def test_compile_and_export(kind):
    model = create(kind, depth=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager").train()
    outputs = [compiled(images()) for _ in range(2)]
    assert not torch.equal(*outputs)  # another draw
    outputs[0].sum().backward()
    assert gradients(model).keys() == {name for name, _ in model.named_parameters()}
    model.eval()
    assert_close(compiled(images()), model(images()))
    exported = torch.export.export(model, (images(),)).module()
    assert_close(exported(images()), model(images()))


@every_kind
def test_what_else_timms_models_do(kind):
    stock, ours = pair(kind)
    torch.manual_seed(5)
    first = ours.train().forward_intermediates(images())
    assert not torch.equal(first[0], ours.forward_intermediates(images())[0])
    found, expected = (one.eval().forward_intermediates(images()) for one in (ours, stock))
    assert_equal(found, expected)
    assert_equal(ours.forward_features(images()), expected[0])
    options = dict(features_only=True, out_indices=[0, 1])
    one, two = create(kind, False, **options, **STILL), create(TWINS[EVAS[kind]], False, **options)
    two.load_state_dict(one.state_dict())
    for training in (True, False):
        assert_close(one.train(training)(images()), two.train(training)(images()))
    features = create(kind, **options).train()
    assert not torch.equal(features(images())[0], features(images())[0])
    traced = create_feature_extractor(create(kind).train(), {"head": "logits"})
    first, second = (traced(images())["logits"] for _ in range(2))
    assert not torch.equal(first, second)  # the noise is not frozen
    ours.reset_classifier(3)
    assert ours(images()).shape == (2, 3)
    ours.set_input_size((32, 32))
    assert ours.train()(images(32, 32)).shape == (2, 3)
    ours.rope.eval()  # as when a part is frozen
    assert_equal(ours(images()), ours.eval()(images()))


@every_kind
def test_patches_are_dropped_with_their_coordinates(kind):
    options = dict(patch_drop_rate=0.5, img_size=(64, 96), dynamic_img_size=False)
    ours, stock = create(kind, **options, **STILL), create(TWINS[EVAS[kind]], **options)
    ours.load_state_dict(stock.state_dict())
    for training in (True, False):
        both = (torch.manual_seed(6) and one.train(training)(images()) for one in (ours, stock))
        assert_close(*both)
    embedding = into_last_block(create(kind, **options).train(), images(batch=3))
    assert embedding.shape[:-1] == (3, 2 if kind == "mixed" else 1, 12)


@every_kind
def test_weights_travel_by_folder_and_by_file(kind, tmp_path):
    stock, ours = pair(kind, max_global_shift=0.2)
    for model, folder in ((stock, tmp_path / "stock"), (ours, tmp_path / "ours")):
        save_for_hf(model.eval(), folder, model_args=model._model_args)
    name, options = EVAS[kind], stock._model_args
    file = dict(file=str(tmp_path / "stock" / "pytorch_model.bin"), num_classes=5)
    fine_tuned = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=file, **options)
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True)
    assert again.augmentation.augmentation.max_global_shift == 0.2
    for model in (fine_tuned, again):
        assert_equal(model.eval()(images(64, 64)), stock(images(64, 64)))
    options = dict(options, num_classes=7, pretrained=True, pretrained_cfg_overlay=file)
    model = timm.create_model(name, **options).eval()
    assert_equal(model.forward_features(images()), stock.forward_features(images()))


@pytest.mark.parametrize(
    "options",
    [
        dict(rope_shift_coords=0.5),
        dict(rope_jitter_coords=1.2, rope_rescale_coords=2),
        dict(max_global_scale=0.7),
        dict(max_local_shift=(0.1, 0.1, 0.1)),
        dict(max_shift=1),
    ],
)
def test_refusals_come_before_anything_is_built(options, monkeypatch):
    monkeypatch.setattr(nn.Module, "__init__", None)
    named, kind = ".*".join(options), TypeError if "max_shift" in options else ValueError
    with pytest.raises(kind, match=named) as error:
        timm.create_model("vit_base_patch16_sapiens2_cape", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "made"),
    [
        (dict(use_rot_pos_emb=False), "NoneType"),
        (dict(rope_type="mrope"), "RotaryEmbeddingMRope"),
        (dict(use_naflex=True), "NaFlexVit"),
        (dict(features_only=True, out_indices=[1], feature_cls="fx"), "FeatureGraphNet"),
    ],
)
def test_options_that_make_another_model_are_refused(options, made):
    with pytest.raises(ValueError, match=f"vit_small_patch16_dinov3_cape .*{made}"):
        create("dinov3", **options)


@pytest.mark.parametrize("batch", [3, 1])
def test_the_table_of_mixed_frequencies_and_its_gradients_are_timms(batch):
    coords = torch.rand(batch, 12, 2) * 14
    frequencies = torch.randn(2, 2, 4, requires_grad=True)
    x, y = coords[:, None].unbind(-1)
    found, expected = fused.mixed_table(coords, frequencies), get_mixed_freqs(frequencies, x, y)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    grads = []
    for table in (found, expected):
        loss = (table * weights).square().sum()
        (grad,) = torch.autograd.grad(loss, frequencies, create_graph=True)
        grads.append((grad, *torch.autograd.grad(grad.square().sum(), frequencies)))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-2)
