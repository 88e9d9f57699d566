"""NaFlexVit with computed positions: batches of images of different sizes, timm's NaFlex loader."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

timm = pytest.importorskip("timm")

from PIL import Image  # noqa: E402
from timm.data import create_dataset, create_naflex_loader  # noqa: E402
from timm.data.naflex_dataset import NaFlexCollator  # noqa: E402
from timm.data.naflex_transforms import Patchify  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins import patch_grid  # noqa: E402
from cape_plugins.augment import AsGiven  # noqa: E402
from cape_plugins.timm.naflexvit import naflex_positions  # noqa: E402
from cape_plugins.timm.registry import variants_by_name  # noqa: E402
from cape_plugins.variants import get  # noqa: E402

VARIANTS = tuple(variants_by_name())
SMALL = dict(depth=2, num_classes=10)
SIZES = [(64, 96), (16, 48), (128, 32)]  # grids of 4 × 6, 1 × 3 and 8 × 2


def create(variant: str = "cape", **kwargs) -> torch.nn.Module:
    return timm.create_model(f"naflexvit_tiny_patch16_{variant}_gap", **{**SMALL, **kwargs})


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, *size, generator=generator) for size in SIZES]


def batch(max_patches: int = 30) -> dict:
    patchify = Patchify(16)
    return NaFlexCollator(max_patches)([(patchify(image), 0) for image in images()])[0]


# names


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_listed_in_all_sizes(variant):
    names = {f"naflexvit_{size}_patch16_{variant}_gap" for size in ("tiny", "small", "base")}
    assert set(timm.list_models(f"naflexvit_*_patch16_{variant}_gap", module="naflexvit")) == names
    cfg = timm.get_pretrained_cfg(f"naflexvit_tiny_patch16_{variant}_gap")
    assert (cfg.tag, cfg.input_size, cfg.fixed_input_size) == ("untrained", (3, 384, 384), False)
    assert (cfg.first_conv, cfg.classifier) == ("embeds.proj", "head")


def test_the_base_size_is_timms():
    ours = timm.create_model("naflexvit_base_patch16_cape_gap", depth=1)
    stock = timm.create_model("naflexvit_base_patch16_gap", depth=1)
    theirs = {k: v.shape for k, v in stock.state_dict().items() if k != "embeds.pos_embed"}
    assert {k: v.shape for k, v in ours.state_dict().items()} == theirs


# positions


def test_each_image_has_the_positions_of_its_own_grid():
    given = batch()
    positions, grids = naflex_positions(given["patch_coord"], given["patch_valid"], extent=0.7)
    assert grids[:, 0].tolist() == [[4, 6], [1, 3], [8, 2]]
    for own, (height, width) in zip(positions, grids[:, 0].tolist(), strict=True):
        assert torch.equal(own[: height * width], patch_grid(height, width, extent=0.7))
        assert own[height * width :].isnan().all()


EXTENT = 0.01  # so small that no phase leaves ± π: then the angle is the position


def augmented(times: int = 1, **settings) -> torch.Tensor:
    """(times, B, N, 2) positions in training, read back from the tokens, in units of EXTENT."""
    shifts = {k: v for k, v in settings.items() if k.endswith("shift") and v is not None}
    for name, value in shifts.items():
        scaled = [EXTENT * v for v in value] if isinstance(value, tuple) else EXTENT * value
        settings[name] = tuple(scaled) if isinstance(value, tuple) else scaled
    model = create(embed_dim=4, num_heads=1, extent=EXTENT, **settings).train()
    for parameter in model.embeds.proj.parameters():
        torch.nn.init.zeros_(parameter)
    given, found = batch(), []
    torch.manual_seed(0)
    for _ in range(times):
        tokens, _ = model.embeds(given["patches"], given["patch_coord"], given["patch_valid"])
        cosine, sine = tokens[:, model.num_prefix_tokens :].detach().double().chunk(2, dim=-1)
        first, second = torch.atan2(sine, cosine).unbind(-1)
        # the listing's phases: π · 10^(1/2) · y and π · 10 · (y cos 1 + x sin 1)
        y = first / (math.pi * math.sqrt(10))
        x = (second / (10 * math.pi) - y * math.cos(1)) / math.sin(1)
        positions = torch.stack([y, x], dim=-1) / EXTENT
        assert (tokens[:, model.num_prefix_tokens :][~given["patch_valid"]] == 0).all()
        found.append(positions.masked_fill(~given["patch_valid"][..., None], math.nan))
    return torch.stack(found)


def test_the_local_shift_is_one_over_n_of_each_images_own_grid():
    given = batch()
    positions, grids = naflex_positions(given["patch_coord"], given["patch_valid"])
    shifts = augmented(50, max_global_shift=0.0, max_global_scale=1.0) - positions
    largest = shifts.abs().nan_to_num().amax(dim=(0, 2))
    bound = 1 / grids[:, 0]
    assert (largest <= bound + 1e-4).all()
    assert (largest > 0.9 * bound).all()
    fixed = augmented(max_global_shift=0.0, max_local_shift=(0.2, 0.0), max_global_scale=1.0)
    shifts = (fixed - positions).abs().nan_to_num()
    assert 0.15 < shifts[..., 0].max() <= 0.2 + 1e-4
    assert shifts[..., 1].max() < 1e-4


def test_the_local_shift_of_ar_preserving_is_one_over_the_longer_side():
    given, settings = batch(), dict(max_global_shift=0.0, max_global_scale=1.0)
    positions, spans = naflex_positions(
        given["patch_coord"], given["patch_valid"], keep_aspect=True
    )
    shifts = augmented(50, pos_embed_ar_preserving=True, **settings) - positions
    largest = shifts.abs().nan_to_num().amax(dim=(0, 2))
    assert (largest <= 1 / spans[:, 0] + 1e-4).all()
    assert (largest > 0.9 / spans[:, 0]).all()


def test_shift_and_scale_are_drawn_once_per_image():
    given = batch()
    positions, grids = naflex_positions(given["patch_coord"], given["patch_valid"])
    moved, scales = augmented(max_global_shift=0.5, max_local_shift=0.0)[0], []
    for before, after, (height, width) in zip(positions, moved, grids[:, 0].tolist(), strict=True):
        n = height * width
        scale = (after[n - 1, 1] - after[0, 1]) / 2  # the width ran from -1 to 1
        shift = after[0] / scale - before[0]
        expected = (before[:n] + shift) * scale
        torch.testing.assert_close(after[:n], expected, atol=1e-4, rtol=0)
        assert 1 / 1.4 - 1e-4 <= scale <= 1.4 + 1e-4
        assert shift.abs().max() <= 0.5 + 1e-4
        scales.append(float(scale))
    assert len(set(scales)) == len(SIZES)


def test_evaluation_is_deterministic_and_those_named_so_augment_in_training():
    given = batch()
    for variant in VARIANTS:
        model = create(variant).eval()
        assert torch.equal(model(given), model(given))
        model.train()
        same = torch.equal(model(given), model(given))
        assert same == (get(model.embeds.position.pos).augment is AsGiven)


def test_nopos_ignores_where_patches_are_and_the_others_do_not():
    given = batch()
    one_column = {**given, "patch_coord": given["patch_coord"] * torch.tensor([1, 0])}
    for variant in VARIANTS:
        model = create(variant, init_values=1.0).eval()
        for block in model.blocks:  # timm's initial weights attend to all alike
            torch.nn.init.normal_(block.attn.qkv.weight)
        assert torch.allclose(model(given), model(one_column), atol=1e-6) == (variant == "nopos")


# padding


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(use_key_only_attn_mask=True),
        dict(global_pool="map"),
        dict(class_token=True, global_pool="token"),
        dict(reg_tokens=0, global_pool="max"),
    ],
    ids=["avg", "key-only mask", "map", "token", "max"],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_in_a_padded_batch_gives_what_it_gives_alone(variant, options):
    model = create(variant, **options).eval()
    alone = torch.cat([model(image[None]) for image in images()])  # as images, not as patches
    torch.testing.assert_close(model(batch(30)), alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(batch(100)), alone, atol=1e-5, rtol=0)


def test_what_padding_holds_changes_nothing():
    model, given = create().eval(), batch()
    padding = ~given["patch_valid"]
    dirty = {
        **given,
        "patches": given["patches"].masked_fill(padding[..., None], 1e3),
        "patch_coord": given["patch_coord"].masked_fill(padding[..., None], 99),
    }
    torch.testing.assert_close(model(dirty), model(given), atol=1e-5, rtol=0)


def test_no_gradient_reaches_padding():
    model, given = create(), batch()
    given["patches"].requires_grad_()
    model(given).sum().backward()
    assert given["patches"].grad[~given["patch_valid"]].abs().max() == 0
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


# what NaFlexVit can do


def test_the_class_token_has_its_own_position():
    model = create(class_token=True, global_pool="token")
    assert model.embeds.cls_pos_embed.std() > 0.01
    assert "embeds.cls_pos_embed" in model.no_weight_decay()
    tokens, _ = model.eval().embeds(images()[0][None])
    expected = model.embeds.cls_token + model.embeds.cls_pos_embed
    assert torch.equal(tokens[:, :1], expected)
    assert create("nopos", class_token=True).embeds.cls_pos_embed is None


def test_dropout_comes_after_the_positions():
    tokens, _ = create("sinpos", pos_drop_rate=0.5).train().embeds(images()[0][None])
    assert 0.4 < (tokens[:, 4:] == 0).float().mean() < 0.6


def test_torch_compile_needs_no_graph_break():
    model, given = create(), batch()
    del given["seq_len"]  # timm's train.py passes tensors and this int; the model ignores it
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.eval()
    torch.testing.assert_close(compiled(given), model(given), atol=1e-5, rtol=1e-5)
    model.train()
    out = compiled(given)
    assert not torch.equal(out, compiled(given))
    out.sum().backward()


def test_torch_compile_makes_one_dynamic_graph_for_all_sequence_lengths():
    model, counter = create(depth=1).train(), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for max_patches in (24, 36, 49, 64):
        given = batch(max_patches)
        del given["seq_len"]
        assert compiled(given).isfinite().all()
    assert counter.frame_count <= 2  # the first length, then any (known from an earlier test)


def test_intermediates_of_a_batch_and_of_images():
    model = create().eval()
    out = model.forward_intermediates(batch(), output_fmt="NLC", output_dict=True)
    assert [f.shape for f in out["image_intermediates"]] == [(3, 30, 192)] * 2
    final, maps = model.forward_intermediates(images()[0][None])
    assert maps[-1].shape == (1, 192, 4, 6)
    assert torch.equal(final, model.forward_features(images()[0][None]))


def test_patch_drop_rate_and_gradient_checkpointing():
    model = create(patch_drop_rate=0.5).train()
    model.set_grad_checkpointing()
    out = model(batch())
    out.sum().backward()
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_to_float32(dtype):
    model, given = create().eval(), batch()
    with torch.no_grad():
        expected = model(given)
        out = model.to(dtype)({**given, "patches": given["patches"].to(dtype)})
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=0)


def test_meta_device_construction_and_init_weights():
    with torch.device("meta"):
        model = create(class_token=True, global_pool="token")
    model = model.to_empty(device="cpu")
    model.init_weights()
    assert 0.015 < model.embeds.cls_pos_embed.std() < 0.025
    assert model.eval()(batch()).isfinite().all()


# checkpoints


def test_a_stock_vit_and_a_stock_naflexvit_load_and_their_tables_are_dropped(tmp_path, caplog):
    for name, target in (
        ("vit_tiny_patch16_224", dict(class_token=True, global_pool="token")),
        ("naflexvit_base_patch16_gap", dict()),
    ):
        shape = dict(embed_dim=192, num_heads=3, init_values=1e-5, **SMALL)
        if name.startswith("vit"):
            target = {**target, "reg_tokens": 0, "fc_norm": False}
        stock = timm.create_model(name, **shape)
        torch.save(stock.state_dict(), tmp_path / "stock.pth")
        caplog.clear()
        model = create(
            pretrained=True,
            pretrained_cfg_overlay=dict(file=str(tmp_path / "stock.pth"), num_classes=10),
            **target,
        )
        assert "pos_embed" in caplog.text
        assert torch.equal(model.blocks[1].mlp.fc2.weight, stock.blocks[1].mlp.fc2.weight)
        if name.startswith("vit"):
            assert torch.equal(model.embeds.cls_pos_embed, stock.pos_embed[:, :1])


def test_a_checkpoint_of_another_model_size_is_refused_in_one_line(tmp_path):
    torch.save(create(depth=3).state_dict(), tmp_path / "other.pth")
    overlay = dict(file=str(tmp_path / "other.pth"), num_classes=10)
    with pytest.raises(ValueError, match="width 192 with 3 blocks, the model has width 192 and 2"):
        create(pretrained=True, pretrained_cfg_overlay=overlay)


def test_a_saved_model_comes_back_by_local_dir_with_its_options(tmp_path):
    model = create(max_global_scale=1.1).eval()
    timm.models.save_for_hf(model, str(tmp_path))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert again.embeds.position.max_global_scale == 1.1
    assert torch.equal(again(batch()), model(batch()))


# bad input


def test_an_image_that_the_patches_do_not_divide_is_named():
    model = create()
    with pytest.raises(ValueError, match="100 × 96 is not divisible by the patch size"):
        model(torch.randn(1, 3, 100, 96))
    assert create(dynamic_img_pad=True)(torch.randn(1, 3, 100, 96)).shape == (1, 10)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(max_global_scale=0.5), ValueError, "max_global_scale must be"),
        (dict(max_local_shift=-1.0), ValueError, "max_local_shift"),
        (dict(extent="wide"), ValueError, "extent must be"),
        (dict(pos="relpos"), ValueError, "unknown variant 'relpos'"),
        (dict(pos_embed="learned"), ValueError, "timm's own models"),
        (dict(max_gobal_shift=0.5), TypeError, "max_gobal_shift"),
    ],
)
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        create(**options)


# timm's loader and trainer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 JPEGs of two classes and six sizes, as train.py wants them."""
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "validation"):
        for index in range(12):
            path = tmp_path / split / ("even", "odd")[index % 2] / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            height, width = 48 + 16 * (index % 3), 48 + 32 * (index % 2)
            pixels = torch.randint(256, (height, width, 3), generator=generator)
            Image.fromarray(pixels.to(torch.uint8).numpy()).save(path)
    return tmp_path


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batches_of_timms_naflex_loader_work(folder, training):
    loader = create_naflex_loader(
        create_dataset("", root=str(folder), split="train", is_training=training),
        patch_size=16,
        train_seq_lens=(9, 16),
        max_seq_len=16,
        batch_size=4,
        is_training=training,
        num_workers=0,
        persistent_workers=False,
        use_prefetcher=False,
        pin_memory=False,
    )
    model = create(num_classes=2).train(training)
    shapes = []
    for given, target in loader:
        loss = torch.nn.functional.cross_entropy(model(given), target)
        assert math.isfinite(loss.item())
        loss.backward()
        shapes.append(tuple(given["patches"].shape[:2]))
    assert sum(images for images, _ in shapes) >= 8
    assert {patches for _, patches in shapes} <= {9, 16}


def test_timms_train_py_trains_it_with_the_naflex_loader(folder):
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS names no folder with timm's train.py")
    command = [sys.executable, "train.py", "--data-dir", folder, "--device", "cpu"]
    command += ["--model", "naflexvit_tiny_patch16_cape_gap", "--num-classes", "2"]
    command += ["--model-kwargs", "depth=2", "max_global_scale=1.2", "--naflex-loader"]
    command += ["--naflex-train-seq-lens", "9", "16", "--naflex-max-seq-len", "16", "-b", "4"]
    command += ["--epochs", "1", "--warmup-epochs", "0", "--workers", "0"]
    command += ["--device-modules", "cape_plugins.timm"]  # where autoload is switched off
    command += ["--opt", "adamw", "--lr", "1e-3"]
    command += ["--output", folder / "out", "--experiment", "naflex"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=scripts,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "out" / "naflex" / "last.pth.tar").is_file()
