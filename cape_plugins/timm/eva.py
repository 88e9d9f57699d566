"""CAPE for timm's rotary ViTs, with their weights: DINOv3, Perception Encoder, EVA-02, RoPE-ViT, …

Each name of timm's class ``Eva`` that has rotary positions gets a twin with ``_cape`` after the
architecture: the same parameters and pretrained weights, in evaluation the same model (but for
``torch.jit.script``, which does not take ours). In training it turns each image's queries and keys
by coordinates that CAPE has augmented (paper, section 3.2): ε and λ change the distances between
patches, Δ and λ those to the class token and the registers, which are not turned. A learnable table
of positions, where the model has one, stays as it is.

    >>> model = timm.create_model("vit_small_patch16_dinov3_cape", pretrained=True)
"""

import os
from dataclasses import replace
from types import FunctionType
from typing import Any

import timm
import torch
from timm import layers
from timm.layers.pos_embed_sincos import make_coords_dinov3
from timm.models import eva as timm_eva
from timm.models import generate_default_cfgs, list_models, model_entrypoint
from torch import Tensor, nn

from cape_plugins.attention import take_over
from cape_plugins.augment import Augmentation
from cape_plugins.constants import constant
from cape_plugins.timm.loading import LoadsWeights, not_googles
from cape_plugins.timm.mark import add_mark
from cape_plugins.timm.mixed_table import mixed_table
from cape_plugins.timm.positions import ImageSettings
from cape_plugins.timm.registry import build, register_models

__all__ = ["EvaCape"]

torch.fx.wrap("make_coords_dinov3")  # makes tensors whose sizes depend on the input


class _Rotary:
    """Mixed into timm's rotary modules: in training they return coordinates, not an embedding."""

    def get_embed(self: Any, shape: Any = None, dtype: torch.dtype | None = None) -> Tensor:
        """timm's embedding; in training coordinates (1, N, 2) in [-1, 1], edge to edge."""
        if not self.training:
            return super().get_embed(shape, dtype)  # type: ignore[misc]
        height, width = self.feat_shape if shape is None else shape
        like = next(iter([*self.buffers(), *self.parameters()]))
        return constant(_coords, height, width, like=like)


def _coords(height: int, width: int, device: torch.device) -> Tensor:
    return make_coords_dinov3(height, width, device=device)[None]  # (1, N, 2)


class _Cat(_Rotary, layers.RotaryEmbeddingCat): ...


class _DinoV3(_Rotary, layers.RotaryEmbeddingDinoV3): ...


class _Mixed(_Rotary, layers.RotaryEmbeddingMixed): ...


_KINDS: dict[str | None, type] = {"cat": _Cat, "dinov3": _DinoV3, "mixed": _Mixed}
# options of augmentation: ours, and timm's, whose augmentation draws once for a whole batch
_OURS = ("max_global_shift", "max_local_shift", "max_global_scale")
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
        return [mixed_table(turned, rotary.freqs[:, layer]) for layer in range(rotary.depth)]
    turned = torch.stack(own, dim=-1)[..., None]  # (B, N, 2, 1)
    angles = 2 * torch.pi * turned / rotary.periods if dinov3 else turned * rotary.bands
    angles = angles.flatten(2)  # (B, N, head_dim / 2): each stands twice in what timm wants
    angles = torch.cat([angles] * 2, -1) if rotary.rotate_half else angles.repeat_interleave(2, -1)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None]


@layers.register_notrace_module  # torch.fx cannot trace its checks
class CoordinateAugmentation(nn.Module):
    """CAPE's augmentation of coordinates of images that span [-1, 1] from edge to edge."""

    def __init__(self, settings: ImageSettings) -> None:
        super().__init__()
        self.settings = settings
        shift, scale = settings.max_global_shift, settings.max_global_scale
        # not centred: the whole image is, and the patches that patch_drop_rate keeps need not be
        self.augmentation = Augmentation(shift, 0.0, scale, mean_normalize=False)

    def forward(self, coords: Tensor, batch: int, height: int, width: int) -> Tensor:
        """(1 or B, N, 2) → (B, N, 2), drawn for each image; ε is half a patch unless set."""
        local = self.settings.max_local_shift or (1 / height, 1 / width)
        return self.augmentation.in_training(coords, batch, max_local_shift=local)


class EvaCape(LoadsWeights, timm_eva.Eva):
    """timm's Eva, whose rotary coordinates CAPE augments in training, each image by itself.

    Args:
        kwargs: Eva's arguments, and CAPE's bounds: ``max_global_shift`` (Δ; default 0.5),
            ``max_local_shift`` (ε; default half a patch) and ``max_global_scale`` (λ; default 1.4,
            about the image's middle). Their unit does not depend on the model: the image spans
            [-1, 1] from edge to edge. Eva rejects unknown arguments.

    Raises:
        ValueError: an option is out of range; the model has no rotary positions, or of an unknown
            kind; or timm's own augmentation of coordinates is on.
    """

    def __init__(self, **kwargs: Any) -> None:
        ours = {name: kwargs.pop(name) for name in _OURS if name in kwargs}
        settings = ImageSettings(pos="cape_rope", **ours)
        kind = _kind(kwargs)
        if kind not in _KINDS:
            raise ValueError(
                f"CAPE augments rotary positions (cat, dinov3, mixed), this model has {kind} "
                "(use_rot_pos_emb, rope_type): choose another one"
            )
        if timms := ", ".join(f"{n}={kwargs[n]}" for n in _TIMMS if kwargs.get(n) is not None):
            raise ValueError(f"{timms} augments what CAPE augments: leave it out or use timm's own")
        super().__init__(**kwargs)
        self.rope = take_over(_KINDS[kind], self.rope)
        self.augmentation = CoordinateAugmentation(settings)
        add_mark(self)

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        """Raise ValueError: there are no .npz weights for this model."""
        raise ValueError(not_googles(type(self).__name__, checkpoint_path))

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


def _kind(options: dict[str, Any]) -> str | None:
    """The rotary positions of an Eva with these arguments."""
    return options.get("rope_type", "cat") if options.get("use_rot_pos_emb") else None


def _arguments(stock: str) -> dict[str, Any]:
    """Arguments with which timm's function for a name builds an Eva; nothing is built."""
    function = model_entrypoint(stock)
    if "_create_eva" not in function.__code__.co_names:
        return {}
    # a copy of the function that calls ours instead of timm's builder; timm's stays unchanged
    names = {**vars(timm_eva), "_create_eva": lambda name, pretrained, **arguments: arguments}
    return FunctionType(function.__code__, names, stock, function.__defaults__)()


def _twins() -> dict[str, str]:
    """Our names → timm's of rotary Evas."""
    found = {}
    for stock, arguments in _STOCK.items():
        if _kind(arguments) in _KINDS:
            name, _, size = stock.rpartition("_")
            found[f"{name}_cape_{size}" if size.isdigit() else f"{stock}_cape"] = stock
    if not found:
        raise ImportError(f"timm {timm.__version__} has no rotary model of its class Eva")
    return found


def _create(name: str, pretrained: bool, use_naflex: bool | None = None, **kwargs: Any) -> Any:
    if use_naflex or (use_naflex is None and os.environ.get("TIMM_USE_NAFLEX") == "1"):
        raise ValueError(f"{name} cannot be a NaFlexVit: leave out use_naflex, TIMM_USE_NAFLEX=1")
    return build(EvaCape, timm_eva.checkpoint_filter_fn, name, pretrained, **kwargs)


def _cfgs() -> dict[str, Any]:
    """timm's ``default_cfgs`` of pretrained weights, under our names."""
    cfgs = {}
    for name, stock in _TWINS.items():
        for tag, cfg in timm_eva.default_cfgs[stock].cfgs.items():
            suffix = f".{tag}" if tag else ""
            # timm would complete "timm/" with our name
            hub = f"timm/{stock}{suffix}" if cfg.hf_hub_id == "timm/" else cfg.hf_hub_id
            cfgs[name + suffix] = replace(cfg, hf_hub_id=hub)
    return cfgs


_STOCK = {stock: _arguments(stock) for stock in list_models(module="eva")}
_TWINS = _twins()
default_cfgs = generate_default_cfgs(_cfgs())
# Sapiens2's arguments have timm's augmentation: ours takes its place
models = {name: _STOCK[stock] | dict.fromkeys(_TIMMS) for name, stock in _TWINS.items()}
register_models(__name__, _create, models)
