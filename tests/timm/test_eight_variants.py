"""Encodings of the literature, written outside: timm's ViTs run those for images."""

import sys

import pytest

pytest.importorskip("timm")

from cape_support import EIGHT, ROOT, package_of_eight, run

SCRIPT = """
import timm, torch
from torch import nn

torch.manual_seed(0)
for pos in EIGHT:
    name = f"vit_tiny_patch4_{pos}_32"
    assert timm.is_model(name) == (pos not in ("cope", "xpos")), name
    if not timm.is_model(name):
        try:
            timm.create_model("vit_tiny_patch4_cape_32", pos=pos)
        except ValueError as error:
            assert pos in str(error) and "kerple" in str(error), error
            continue
        raise AssertionError(f"{pos} is for sequences")
    small = dict(depth=2, embed_dim=24, num_heads=3, num_classes=5)
    model = timm.create_model(name, **small)
    for size in (32, 48):
        model(torch.randn(2, 3, size, size)).square().sum().backward()
    for key, one in model.named_parameters():
        assert one.grad is not None and one.grad.isfinite().all(), (pos, key)
    flex = timm.create_model(f"naflexvit_tiny_patch16_{pos}_gap", **small).eval()
    coord = torch.cartesian_prod(torch.arange(3), torch.arange(4))[None].repeat(2, 1, 1)
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[1, 9:] = False
    patches = torch.randn(2, 12, 16 * 16 * 3)
    out = flex(dict(patches=patches, patch_coord=coord, patch_valid=valid))
    assert out.isfinite().all(), pos
    cut = flex(dict(patches=patches[1:, :9], patch_coord=coord[1:, :9], patch_valid=valid[1:, :9]))
    torch.testing.assert_close(out[1:], cut, atol=1e-4, rtol=1e-4)
model = timm.create_model("vit_tiny_patch4_fourier_32", **small)
free = {name.removeprefix("position.added.") for name in model.no_weight_decay()}
assert {"frequencies", "network.0.bias", "network.2.bias"} <= free
assert not {"network.0.weight", "network.2.weight"} & free
try:
    timm.create_model("vit_tiny_patch4_fourier_32", **small, fourier_featurs=8)
except ValueError as error:
    assert "mean fourier_features" in str(error), error
else:
    raise AssertionError
shared = timm.create_model("vit_tiny_patch4_t5_shared_32", **small)
assert sum("positional" in name for name, _ in shared.named_parameters()) == 1
new = timm.create_model("vit_tiny_patch4_t5_shared_32", **small)
new.load_state_dict(shared.state_dict())
"""


@pytest.mark.release
def test_a_model_of_each_learns_at_two_sizes_with_padding_and_those_for_sequences_are_refused(
    tmp_path,
):
    script = f"EIGHT = {EIGHT}\n{SCRIPT}"
    status, said = run(sys.executable, "-c", script, cwd=ROOT, **package_of_eight(tmp_path))
    assert status == 0, said[-3000:]
