"""Checks of parity.py: the models of the hosts, timm's twins, and compiled models."""

from collections.abc import Iterator

import torch
from torch import nn

from hosts import CASES, builder, names_of
from parity_support import Found, error, left_out

# case → sizes that take the CPU well under a second
SMALL: dict[str, dict[str, object]] = {
    "vit_small": dict(size="tiny", depth=2, image=96),
    "wmt_base": dict(layers=2, dim=128, heads=4, words=500, length=33),
    "asr_12": dict(layers=2, dim=64, heads=4, seconds=2),
    "conformer_12": dict(layers=2, dim=64, heads=4, seconds=2),
}
# a twin of every way in which timm's models place their tokens, and a ViT of ours in other sizes
TWINS = (
    "vit_small_patch16_dinov3_cape",
    "vit_small_patch16_rope_cape_224",
    "vit_small_patch16_rope_mixed_cape_224",
    "vit_small_patch16_rope_mixed_ape_cape_224",
    "eva02_tiny_patch14_cape_224",
    "vit_pe_core_tiny_patch16_cape_384",
    "naflexvit_tiny_patch16_cape_gap",
    "naflexvit_tiny_patch16_cape_rope_mixed_gap",
)


def hosts(device: str, quick: bool) -> Iterator[Found]:
    """Every variant in every host, in evaluation: the loss and the gradients of all weights."""
    for case, sizes in SMALL.items():
        host = CASES[case][0]
        for pos in names_of(host)[:: 5 if quick else 1]:
            losses, gradients = [], []
            try:
                for where in ("cpu", device):
                    torch.manual_seed(0)
                    model, loss = builder(case, 3, where, **sizes)(pos)
                    model.to(where).eval()  # without dropout and augmentation
                    value = loss(model)
                    value.backward()
                    losses.append(value)
                    each = (w.grad.flatten() for w in model.parameters() if w.grad is not None)
                    gradients.append(torch.cat([grad.cpu() for grad in each]))
            except ImportError as problem:
                yield f"{case}: left out, {problem}", None, None
                break
            yield f"{case}, {pos}: loss", error(losses[1], losses[0]), 1e-5
            yield f"{case}, {pos}: gradients", error(gradients[1], gradients[0]), 2e-4


def _twin(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5).eval()
    return model, torch.randn(2, *model.default_cfg["input_size"])


@torch.no_grad()
def twins(device: str, quick: bool) -> Iterator[Found]:
    """timm's models with CAPE, in evaluation."""
    for name in TWINS[: 1 if quick else None]:
        model, images = _twin(name)
        wanted = model(images)
        found = model.to(device)(images.to(device))
        yield f"twin {name}: outputs", error(found, wanted), 2e-4


@torch.no_grad()
def compiled(device: str, quick: bool) -> Iterator[Found]:
    """torch.compile's models, in one graph, against eager ones."""
    if device != "cuda":
        yield left_out("compiled models")
        return
    for name in ("vit_tiny_patch16_cape_rope_224", "vit_tiny_patch16_cape_alibi_224", TWINS[0]):
        model, images = _twin(name)
        model, images = model.to(device), images.to(device)
        found = torch.compile(model, fullgraph=True)(images)
        yield f"compiled {name}: outputs", error(found, model(images)), 2e-3
        torch.compiler.reset()
