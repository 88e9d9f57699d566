"""How our timm models load weights, in each of timm's ways.

timm loads in three ways: by ``model.load_state_dict`` (``checkpoint_path``, ``--resume``), by a
filter and then ``load_state_dict`` (``pretrained=True``), and by ``model.load_pretrained`` (.npz).
All of them end in :class:`LoadsWeights`.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import timm
import torch
from torch import Tensor, nn

from cape_plugins.timm import files, google

_logger = logging.getLogger(__name__)

Filter = Callable[[dict[str, Any], Any], dict[str, Tensor]]

_PRETRAINED = "--pretrained --pretrained-path, in Python pretrained_cfg_overlay=dict(file=…)"
_NAFLEX = "embeds.proj.weight"
_VIT = "patch_embed.proj.weight"
_QUOTED = '"([^"]+)"'


class WeightsError(ValueError, RuntimeError):
    """Weights do not fit. It is a ValueError, as our other errors, and PyTorch's RuntimeError."""


class LoadsWeights(nn.Module):
    """Mixed into our models: the error for weights that do not fit is one line."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As PyTorch's.

        Raises:
            WeightsError: the weights have another architecture, size or layout.
            ValueError: the weights were trained with another variant.
        """
        for name in (_VIT, _NAFLEX):
            if _was_reshaped(state_dict.get(name)):
                raise WeightsError(
                    "remap=True reshapes the patch embedding, but a ViT and a NaFlexVit take a "
                    f"patch's pixels in another order: use {_PRETRAINED}"
                )
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            if isinstance(error, WeightsError) or "loading state_dict" not in str(error):
                raise
            check_architecture(state_dict, self)
            raise WeightsError(_in_one_line(str(error), state_dict, self)) from error


class LoadsGoogles(LoadsWeights):
    """Mixed into our ViTs: they load weights in Google's layout (.npz) too."""

    _filter: Filter

    def load_pretrained(self: Any, checkpoint_path: str, prefix: str = "") -> None:
        """Load an .npz in Google's layout, with the result of loading timm's state dict of it.

        If the file's head is for other classes, the model's head stays as it was initialized, as in
        timm, and the log says so.

        Raises:
            ValueError: as :func:`cape_plugins.timm.google.read` and :meth:`load_state_dict`.
        """
        embeds = getattr(self, "embeds", None)
        in_chans = self.patch_embed.proj.in_channels if embeds is None else embeds.in_chans
        weights = google.read(checkpoint_path, prefix, in_chans)
        weights = type(self)._filter(weights, self)
        own = self.state_dict()
        heads = {name: one for name, one in own.items() if name.startswith("head.")}
        theirs = {name: one for name, one in weights.items() if name.startswith("head.")}
        shapes = [{name: one.shape for name, one in each.items()} for each in (heads, theirs)]
        if shapes[0] != shapes[1]:
            classes = len(theirs["head.bias"]) if theirs else 0
            _logger.warning(
                f"the head of {checkpoint_path} is for {classes} classes, the model's for "
                f"{self.num_classes}: the model's stays as it was initialized"
            )
            kept = {name: one for name, one in weights.items() if name not in theirs}
            weights = kept | heads
        self.load_state_dict(weights)


def check_architecture(state_dict: Mapping[str, Any], model: Any) -> None:
    """Compare width and depth.

    Raises:
        WeightsError: the weights are not a ViT's, or the model has another width or depth.
    """
    blocks = {name.split(".")[1] for name in state_dict if name.startswith("blocks.")}
    if not blocks and isinstance(state_dict.get("state_dict"), Mapping):
        raise WeightsError("this is a whole checkpoint of a training: give its ['state_dict']")
    if not blocks:
        first = ", ".join(str(name) for name in [*state_dict][:3]) or "nothing"
        raise WeightsError(
            f"the checkpoint is not a ViT with timm's names, it has {first}: give one of "
            f"{type(model).__name__}, or of the timm model with its sizes"
        )
    norm = state_dict.get("blocks.0.norm1.weight")
    width = model.embed_dim if norm is None else len(norm)
    if (width, len(blocks)) != (model.embed_dim, len(model.blocks)):
        raise WeightsError(
            f"the checkpoint is a ViT of width {width} with {len(blocks)} blocks, the model has "
            f"width {model.embed_dim} and {len(model.blocks)} blocks: create the model it fits"
        )


def checked(filter_fn: Filter) -> Filter:
    """Wrap a filter of checkpoints so that it refuses or logs weights that the checkpoint lacks.

    Learned positional weights belong to a variant. Those that the checkpoint lacks stay as they
    were initialized; those that only the checkpoint has are dropped. The log says so.
    """

    def run(state_dict: dict[str, Any], model: Any) -> dict[str, Tensor]:
        for whole in ("state_dict", "model"):  # a whole checkpoint, as hf-hub: may hand it over
            inner = state_dict.get(whole)
            state_dict = dict(inner) if isinstance(inner, Mapping) else state_dict
        weights = dict(filter_fn(state_dict, model))
        own = model.state_dict()
        for name in [name for name in weights if name not in own and _is_positional(name)]:
            del weights[name]
            _logger.warning(f"dropped {name} of the checkpoint: this model has no such weight")
        missing = [name for name in own if name not in weights and not name.startswith("head.")]
        body = [name for name in missing if name.startswith(("blocks.", "patch_", "embeds.proj"))]
        body = [name for name in body if not _is_positional(name)]
        if body:
            advice = _kinds(weights, own) or "give one that has them"
            raise WeightsError(f"the checkpoint lacks {_some(body)}: {advice}")
        if missing:
            _logger.warning(
                f"the checkpoint lacks {_some(missing)}: they stay as they were initialized"
            )
        return weights | {name: own[name] for name in missing if _is_positional(name)}

    return run


def layer_scale(model: nn.Module) -> dict[str, Tensor]:
    """Layer scale of 1, for weights without layer scale: it is what they were trained with."""
    own = model.named_parameters()
    return {name: torch.ones_like(one) for name, one in own if name.endswith(".gamma")}


def take_file(name: str, kwargs: dict[str, Any], is_vit: bool) -> tuple[dict[str, Any], Any]:
    """Arguments of ``build_model_with_cfg`` for ``pretrained=True``; an .npz is read here.

    Returns:
        The arguments, and timm's ``pretrained_cfg``, which says where the weights are.

    Raises:
        ValueError: an .npz is damaged, or the model is not one of our ViTs.
    """
    overlay = kwargs.get("pretrained_cfg_overlay") or {}
    cfg = timm.models.resolve_pretrained_cfg(name, kwargs.get("pretrained_cfg"), overlay)
    is_file = cfg.file and not cfg.state_dict and cfg.source not in ("hf-hub", "local-dir")
    if is_file and str(cfg.file).lower().endswith((".npz", ".npy")):
        if not is_vit:
            raise ValueError(not_googles(name, cfg.file))
        overlay = {**overlay, "state_dict": google.read(str(cfg.file))}
        kwargs = {**kwargs, "pretrained_cfg_overlay": overlay}
    return kwargs, cfg


def fault_of(cfg: Any) -> str | None:
    """What is wrong with the file or folder of the weights; None if no fault is found."""
    if cfg.source == "local-dir":
        return files.fault_in_folder(cfg.file)
    return files.fault(cfg.file) if cfg.file and cfg.source != "hf-hub" else None


def not_googles(name: str, path: Any) -> str:
    """The error message of a model that is not a plain ViT, for an .npz."""
    return (
        f"{path} is for plain ViTs (vit_*), {name} is none: give a .pth or .safetensors of it, or "
        "of timm's model that it is like"
    )


def _is_positional(name: str) -> bool:
    return ".positional." in name or name.endswith("cls_pos_embed")


def _was_reshaped(weight: Any) -> bool:
    """A patch embedding (dim, C, H, W) whose rows became (dim, H · W · C) by reshape, or back."""
    base = getattr(weight, "_base", None)
    if base is None or sorted((base.ndim, weight.ndim)) != [2, 4]:
        return False
    channels, *sides = (base if base.ndim == 4 else weight).shape[1:]
    mixes = channels > 1 and max(sides) > 1
    return mixes and torch.equal(base.flatten(1), weight.flatten(1))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _kinds(given: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    if _NAFLEX in given and _VIT in own:
        return "it is a NaFlexVit's, this model a ViT: create it as naflexvit_* or use_naflex=True"
    if _VIT in given and _NAFLEX in own:
        return f"it is a ViT's, this model a NaFlexVit, which takes it by {_PRETRAINED}"
    return ""


def _in_one_line(error: str, given: Mapping[str, Any], model: nn.Module) -> str:
    """Shorten PyTorch's error, which names every weight on several lines."""
    found = []
    lines = [line.strip() for line in error.split("\n\t")[1:]]
    for kind, verb in (("Missing", "lacks"), ("Unexpected", "has besides")):
        for line in lines:
            if line.startswith(kind):
                found.append(f"{verb} {_some(re.findall(_QUOTED, line))}")
    shapes = r"copying a param with shape torch.Size\((.+?)\) from .*torch.Size\((.+?)\)\.?"
    ours = r"\1 in the checkpoint, \2 in the model"
    sizes = [re.sub(shapes, ours, line) for line in lines if line.startswith("size mismatch")]
    if sizes:
        more = f" (and {len(sizes) - 1} more)" if len(sizes) > 1 else ""
        found.append(sizes[0] + more)
    told = "; ".join(found) or " ".join(error.split())
    advice = _kinds(given, model.state_dict())
    if not advice:
        advice = f"create the checkpoint's model, or start from its weights by {_PRETRAINED}"
    return f"the checkpoint does not fit {type(model).__name__}: {told}: {advice}"
