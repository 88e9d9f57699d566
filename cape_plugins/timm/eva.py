"""CAPE for timm's rotary ViTs, with their weights: DINOv3, Perception Encoder, EVA-02, RoPE-ViT, …

Each name of timm's class ``Eva`` that has rotary positions gets a twin with ``_cape`` after the
architecture: the same parameters and pretrained weights, in evaluation the same model (but for
``torch.jit.script``, which does not take ours). In training it turns each image's queries and keys
by coordinates that CAPE has augmented (paper, section 3.2): ε and λ change the distances between
patches, Δ and λ those to the class token and the registers, which are not turned. A learnable table
of positions, where the model has one, stays as it is.

timm's own function builds the stock model and loads its weights; it then gets our class and our
module of rotary positions.

    >>> model = timm.create_model("vit_small_patch16_dinov3_cape", pretrained=True)
"""

from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import torch
from timm import layers
from timm.layers.pos_embed_sincos import make_coords_dinov3
from timm.models import eva as timm_eva
from timm.models import generate_default_cfgs, model_entrypoint
from torch import Tensor, nn

from cape_plugins import fused
from cape_plugins.augment import Augmentation
from cape_plugins.host import with_class
from cape_plugins.options import declared
from cape_plugins.part import Sizes
from cape_plugins.timm.options import HOST, image_settings
from cape_plugins.timm.registry import register_models
from cape_plugins.timm.relies import RELIES

__all__ = ["EvaCape"]

torch.fx.wrap("_coords")  # makes tensors whose sizes depend on the input
torch.fx.wrap("_mixed")


class _Rotary:
    """Mixed into timm's rotary modules: in training they return coordinates, not an embedding."""

    def get_embed(self: Any, shape: Any = None, dtype: torch.dtype | None = None) -> Tensor:
        """timm's embedding; in training coordinates (1, N, 2) in [-1, 1], edge to edge."""
        if not self.training:
            return super().get_embed(shape, dtype)  # type: ignore[misc]
        height, width = self.feat_shape if shape is None else shape
        like = next(iter([*self.buffers(), *self.parameters()]))
        return _coords(height, width, like)


def _coords(height: int, width: int, like: Tensor) -> Tensor:
    return fused.constant(_make_coords, height, width, like=like)


def _make_coords(height: int, width: int, device: torch.device) -> Tensor:
    return make_coords_dinov3(height, width, device=device)[None]  # (1, N, 2)


def _mixed(coords: Tensor, frequencies: Tensor) -> Tensor:
    """timm's table (B, heads, N, 2 · head_dim) of a layer, for coordinates (B, N, 2)."""
    if fused.usable(coords, frequencies) and not coords.requires_grad:
        return fused.mixed_table(coords, frequencies)
    x, y = coords[:, None].unbind(-1)  # (B, 1, N)
    return layers.get_mixed_freqs(frequencies, x, y, torch.float32)


class _Cat(_Rotary, layers.RotaryEmbeddingCat): ...


class _DinoV3(_Rotary, layers.RotaryEmbeddingDinoV3): ...


class _Mixed(_Rotary, layers.RotaryEmbeddingMixed): ...


_KINDS: dict[type, type] = {
    layers.RotaryEmbeddingCat: _Cat,
    layers.RotaryEmbeddingDinoV3: _DinoV3,
    layers.RotaryEmbeddingMixed: _Mixed,
}
# options of augmentation: ours, and timm's, whose augmentation draws once for a whole batch
_OURS = declared(Augmentation, axes=2).keys() - HOST.sets
_TIMMS = ("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords")


def _embed(rotary: Any, coords: Tensor, height: int, width: int) -> Any:
    """Coordinates (B, N, 2) in [-1, 1] → what timm's blocks get: (B, 1, N, 2 · head_dim).

    For RoPE-mixed it is a list of (B, heads, N, 2 · head_dim), one for each block, because smaller
    tensors are faster.
    """
    dinov3, offset = isinstance(rotary, _DinoV3), getattr(rotary, "grid_offset", 0.0)
    spans = getattr(rotary, "ref_feat_shape", None) or (height, width)
    own = []  # in the unit that the weights were trained with
    for axis, (patches, span) in enumerate(zip((height, width), spans, strict=True)):
        half, middle = 1.0, 2 * offset / patches  # from -1 to 1 too
        if not dinov3:  # indices of patches, of those of the reference
            half, middle = span / 2, (patches / 2 - 0.5 + offset) / patches * span
        own.append(coords[..., axis] * half + middle)
    own = own if rotary.grid_indexing == "ij" else own[::-1]
    if isinstance(rotary, _Mixed):
        turned = torch.stack(own, dim=-1)  # (B, N, 2)
        return [_mixed(turned, rotary.freqs[:, layer]) for layer in range(rotary.depth)]
    turned = torch.stack(own, dim=-1)[..., None]  # (B, N, 2, 1)
    angles = 2 * torch.pi * turned / rotary.periods if dinov3 else turned * rotary.bands
    angles = angles.flatten(2)  # (B, N, head_dim / 2): each stands twice in what timm wants
    angles = torch.cat([angles] * 2, -1) if rotary.rotate_half else angles.repeat_interleave(2, -1)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None]


@layers.register_notrace_module  # torch.fx cannot trace its checks
class CoordinateAugmentation(nn.Module):
    """CAPE's augmentation of coordinates of images that span [-1, 1] from edge to edge.

    Args:
        augmentation: without centring: the whole image is centred, and the patches that
            ``patch_drop_rate`` keeps need not be.
        local_shift_is_given: whether ε is that of ``augmentation``; else it is half a patch.
    """

    def __init__(self, augmentation: Augmentation, local_shift_is_given: bool) -> None:
        super().__init__()
        self.augmentation, self.local_shift_is_given = augmentation, local_shift_is_given

    def forward(self, coords: Tensor, batch: int, height: int, width: int) -> Tensor:
        """(1 or B, N, 2) → (B, N, 2), drawn for each image."""
        local = None if self.local_shift_is_given else (1 / height, 1 / width)
        return self.augmentation.in_training(coords, batch, max_local_shift=local)


class EvaCape(timm_eva.Eva):
    """timm's Eva, whose rotary coordinates CAPE augments in training, each image by itself.

    :meth:`of` makes one of timm's model.
    """

    augmentation: CoordinateAugmentation

    @classmethod
    def of(cls, model: timm_eva.Eva, augmentation: CoordinateAugmentation) -> "EvaCape":
        """timm's model with this class. It takes over timm's weights, which keep their names.

        Args:
            model: with rotary positions of a kind that timm calls cat, dinov3 or mixed.
            augmentation: of its coordinates in training. Its unit does not depend on the model: the
                image spans [-1, 1] from edge to edge. λ scales about the image's middle.
        """
        ours = with_class(model, cls)
        ours.rope = with_class(model.rope, _KINDS[type(model.rope)])
        ours.augmentation = augmentation
        return ours

    def _pos_embed(self, x: Tensor) -> tuple[Tensor, Any]:
        """Patches → tokens, and the embedding that timm hands to each block."""
        height, width = x.shape[1:3] if self.dynamic_img_size else self.patch_embed.grid_size
        x, embedding = super()._pos_embed(x)
        if self.rope.training and embedding is not None:
            # timm has dropped rows with patch_drop_rate, and put the axis of heads or layers in
            coords = embedding.reshape(-1, embedding.shape[-2], 2)  # (1 or B, N, 2)
            coords = self.augmentation(coords, x.shape[0], height, width)  # (B, N, 2)
            embedding = _embed(self.rope, coords, height, width)
        return x, embedding


def _create(name: str, pretrained: bool, *, stock: str, **kwargs: Any) -> nn.Module:
    """The twin of timm's model ``stock``; ``kwargs`` are timm's, and Δ, ε, λ."""
    RELIES.check()
    given = {option: kwargs.pop(option) for option in _OURS if option in kwargs}
    settings, _ = image_settings({"pos": "cape_rope", **given})
    bounds = {option: settings.options[option] for option in _OURS}
    if not settings.local_shift_is_given:
        bounds["max_local_shift"] = 0.0  # CoordinateAugmentation has that of each grid
    augmentation = Augmentation(**bounds, mean_normalize=False, sizes=Sizes(dim=1, axes=2))
    if timms := ", ".join(f"{n}={kwargs[n]}" for n in _TIMMS if kwargs.get(n) is not None):
        raise ValueError(f"{timms} augments what CAPE augments: leave it out or use timm's own")
    # Sapiens2's have timm's augmentation: ours takes its place
    made: Any = model_entrypoint(stock)(pretrained, **{**kwargs, **dict.fromkeys(_TIMMS)})
    theirs: Any = getattr(made, "model", made)  # where features_only wraps it
    rotary = getattr(theirs, "rope", None)
    if not isinstance(theirs, timm_eva.Eva) or type(rotary) not in _KINDS:
        raise ValueError(
            f"{name} augments rotary positions (cat, dinov3, mixed) of timm's class Eva, and its "
            f"options make {type(theirs).__name__} with {type(rotary).__name__}: leave out "
            "use_rot_pos_emb, rope_type, use_naflex, TIMM_USE_NAFLEX and feature_cls"
        )
    coordinates = CoordinateAugmentation(augmentation, settings.local_shift_is_given)
    ours: Any = EvaCape.of(theirs, coordinates)
    if theirs is made:
        made = ours
    else:
        made.model = ours
    for one in (made, ours):
        one.pretrained_cfg["architecture"] = name  # in the config.json of timm's save_for_hf
    return made


# of timm's class Eva, these have a learnable table alone
_NOT_ROTARY = ("eva_giant_*", "eva02_enormous_*")


def _twins() -> dict[str, str]:
    """Our names → timm's of rotary Evas; none is built, so that importing stays fast."""
    found = {}
    for stock in timm_eva.default_cfgs:
        if not any(fnmatch(stock, pattern) for pattern in _NOT_ROTARY):
            name, _, size = stock.rpartition("_")
            found[f"{name}_cape_{size}" if size.isdigit() else f"{stock}_cape"] = stock
    return found


def _cfgs(twins: dict[str, str]) -> dict[str, Any]:
    """timm's ``default_cfgs`` of pretrained weights, under our names."""
    cfgs = {}
    for name, stock in twins.items():
        for tag, cfg in timm_eva.default_cfgs[stock].cfgs.items():
            suffix = f".{tag}" if tag else ""
            # timm would complete "timm/" with our name
            hub = f"timm/{stock}{suffix}" if cfg.hf_hub_id == "timm/" else cfg.hf_hub_id
            cfgs[name + suffix] = replace(cfg, hf_hub_id=hub)
    return cfgs


TWINS = _twins()
default_cfgs = generate_default_cfgs(_cfgs(TWINS))
register_models(__name__, _create, {name: dict(stock=stock) for name, stock in TWINS.items()})
