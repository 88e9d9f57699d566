"""From a name or a checkpoint file to a timm model that takes images of any size."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from timm.models import clean_state_dict
from torch import Tensor

import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins.timm import mark
from cape_studies.evaluation.command import said
from cape_studies.evaluation.options import named
from cape_studies.evaluation.timm.options import TimmOptions

_SOURCES = ("local-dir:", "hf-hub:", "hf_hub:")


@dataclass
class Loaded:
    """A model ready to be evaluated.

    Attributes:
        model: in eval mode, on its device.
        name: as the user calls it, else timm's name of the architecture.
        checkpoint: where its weights came from.
        train_size: image size in pixels that it was trained at: ``--train-size``, else train.py's
            ``input_size`` or ``img_size``, else the model's own.
        config: timm's data config: crop, interpolation, mean and std.
        device: that it is on.
        amp_dtype: of autocast; None: without.
    """

    model: Any
    name: str
    checkpoint: str
    train_size: int
    config: dict[str, Any]
    device: torch.device
    amp_dtype: torch.dtype | None = None

    def logits(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) → logits (B, classes) in float32."""
        kind, dtype = self.device.type, self.amp_dtype
        with torch.inference_mode(), torch.autocast(kind, dtype, enabled=dtype is not None):
            out = self.model(pixels)
        return (out[0] if isinstance(out, tuple) else out).float()

    @property
    def patch(self) -> tuple[int, int]:
        """(height, width) in pixels that image sizes must be multiples of."""
        for name in ("patch_embed", "embeds"):
            embed = getattr(self.model, name, None)
            size = getattr(embed, "patch_size", None)
            if size is not None and not getattr(embed, "dynamic_img_pad", False):
                return (size, size) if isinstance(size, int) else tuple(size)
        return (1, 1)


def load(given: str, options: TimmOptions, device: torch.device) -> Loaded:
    """Create a model and load its weights, all of them.

    Models whose constructor has ``dynamic_img_size`` get it, so that one checkpoint is tested at
    all sizes: timm's abspos ViTs then interpolate their table in the forward.

    Args:
        given: a file (train.py's ``.pth.tar``, a plain state dict, ``.safetensors``), a
            ``local-dir:``/``hf-hub:`` name, or a timm name that has weights; or NAME= and that.
        options: the architecture, its arguments and the data config; they win over the record.
        device: of the model.

    Raises:
        ValueError: no such file or name, a file that cannot be read, weights that do not fit the
            model, or another variant or other settings than they were trained with.
    """
    name, checkpoint = named(given, "--checkpoint")
    if Path(checkpoint).is_file():
        model, architecture, args = _load_file(checkpoint, options.model, options.model_kwargs)
    elif options.model is None and _is_name(checkpoint):
        try:
            model = _create(checkpoint, pretrained=True, **options.model_kwargs)
        except Exception as error:  # the hub's client has many kinds
            raise ValueError(f"{checkpoint} cannot be loaded: {said(error)}") from error
        architecture, args = model.pretrained_cfg.get("architecture") or checkpoint, {}
    else:
        raise ValueError(
            f"no checkpoint file {checkpoint}: give a file, or without --model local-dir:FOLDER, "
            "hf-hub:USER/NAME or the name of a timm model with weights"
        )
    wanted = {key: getattr(options, key) for key in ("crop_pct", "interpolation", "mean", "std")}
    config = resolve_data_config(args | {k: v for k, v in wanted.items() if v}, model=model)
    size = options.train_size or config["input_size"][-1]
    amp_dtype = getattr(torch, options.amp_dtype) if options.amp else None
    model = model.eval().to(device)
    return Loaded(model, name or architecture, checkpoint, size, config, device, amp_dtype)


def _is_name(text: str) -> bool:
    return text.startswith(_SOURCES) or timm.is_model(text.split(".")[0])


def _load_file(
    path: str, name: str | None, kwargs: dict[str, Any]
) -> tuple[Any, str, dict[str, Any]]:
    """The model, its architecture's name, and train.py's arguments as far as the file has them."""
    content = _read(path)
    args = content.get("args")
    train_args = vars(args) if isinstance(args, argparse.Namespace) else args
    train_args = train_args if isinstance(train_args, dict) else {}
    kinds = ("state_dict_ema", "state_dict", "model")  # timm's load_checkpoint: the average first
    weights = clean_state_dict(next(filter(None, map(content.get, kinds)), content))
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{path} holds no state dict")
    name = name or train_args.get("model") or content.get("arch")
    if not isinstance(name, str) or not _is_name(name):
        raise ValueError(
            f"{path} is of {name or 'a model it does not name'}, which timm does not know: give "
            "--model NAME, one of timm.list_models()"
        )
    recorded = {
        "global_pool": train_args.get("gp"),
        "in_chans": train_args.get("in_chans"),
        "num_classes": train_args.get("num_classes"),
        **(train_args.get("model_kwargs") or {}),
    }
    kwargs = {key: value for key, value in recorded.items() if value is not None} | kwargs
    try:
        model = _create(name, **kwargs)
    except Exception as error:  # timm's constructors raise what a bad argument leads to
        raise ValueError(
            f"{name} cannot be created with {kwargs} (for {path}): {said(error)}"
        ) from error
    trained, made = mark.read_mark(weights), mark.settings(model)
    if None not in (trained, made) and trained != made:
        raise ValueError(
            f"{path} was trained with {mark.describe(trained)}, this model would have "
            f"{mark.describe(made)}: give the training's --model and --model-kwargs, img_size too"
        )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{path} does not fit {name}: {said(error, 3)[:300]}; give the --model and "
            "--model-kwargs that it was trained with"
        ) from error
    return model, name, train_args


def _create(name: str, *, pretrained: bool = False, **kwargs: Any) -> Any:
    kwargs = {"dynamic_img_size": True, **kwargs}
    try:
        return timm.create_model(name, pretrained=pretrained, **kwargs)
    except TypeError as error:
        if "dynamic_img_size" not in str(error):
            raise
        del kwargs["dynamic_img_size"]  # convolutional networks take any size without it
        return timm.create_model(name, pretrained=pretrained, **kwargs)


def _read(path: str) -> dict[str, Any]:
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        # train.py puts its argparse.Namespace beside the weights
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both readers have many kinds for what is no checkpoint
        raise ValueError(f"{path} cannot be read as a checkpoint: {said(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content
