"""From a checkpoint file to a timm model that takes images of any size."""

import argparse
import inspect
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from timm.models import load_state_dict
from torch import Tensor

import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off
from cape_studies.command import named, said
from cape_studies.evaluate.timm.options import TimmOptions

#: What timm.create_model itself takes, such as ``pretrained`` and ``checkpoint_path``: with it timm
#: would open other weights, here or at a URL that the file names.
OF_OTHER_WEIGHTS = {*inspect.signature(timm.create_model).parameters} - {"kwargs"}


@dataclass
class Loaded:
    """A model ready to be evaluated, in eval mode.

    Attributes:
        name: the NAME that the user gave, else timm's name of the architecture.
        train_size: side in pixels of the training's images, else the model's own.
        config: timm's data config: crop, interpolation, mean and std.
        amp: mixed precision, in float16.
    """

    model: Any
    name: str
    checkpoint: str
    train_size: int
    config: dict[str, Any]
    device: torch.device
    amp: bool = False

    def logits(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) → logits (B, classes) in float32."""
        kind = self.device.type
        with torch.inference_mode(), torch.autocast(kind, torch.float16, enabled=self.amp):
            out = self.model(pixels)
        return (out[0] if isinstance(out, tuple) else out).float()

    @property
    def patch(self) -> tuple[int, int]:
        """Height and width of a patch in pixels; (1, 1) for a model without patches."""
        return getattr(getattr(self.model, "patch_embed", None), "patch_size", (1, 1))


def load(given: str, options: TimmOptions, device: torch.device) -> Loaded:
    """Create a model and load all its weights; if train.py kept an average (EMA), the average.

    If the model's constructor has ``dynamic_img_size``, it is set, so that one checkpoint can be
    tested at all sizes. timm's abspos ViTs then interpolate their table in the forward.

    Architecture, its arguments and the crop come from ``options``, else from the file. Nothing
    that a file says makes timm open another file, or anything on the net.

    Raises:
        ValueError: there is no such file or model; the file cannot be read; its weights do not fit
            the model, or were trained with another variant or with other settings; or a model of
            the Hugging Face Hub or other weights are asked for.
    """
    label, path = named(given, "--checkpoint")
    content: dict[str, Any] = {}
    try:
        weights = load_state_dict(path)
        if not path.endswith(".safetensors"):
            # train.py puts its argparse.Namespace beside the weights
            # (fairseq's registration allows it for good, which the end of a block would undo)
            known = torch.serialization.get_safe_globals()
            new: list[Any] = [one for one in (argparse.Namespace,) if one not in known]
            with torch.serialization.safe_globals(new):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # for a file that is no checkpoint both have errors of many types
        raise ValueError(f"{path} cannot be read as a checkpoint: {said(error)}") from error
    args = content.get("args") or {}
    args = args if isinstance(args, dict) else vars(args)
    name = options.model or content.get("arch")
    if not isinstance(name, str):
        raise ValueError(
            f"{path} does not name its model: give --model NAME, one of timm.list_models()"
        )
    names = {"global_pool": "gp", "in_chans": "in_chans", "num_classes": "num_classes"}
    recorded = {key: args.get(own) for key, own in names.items()}  # timm leaves out None
    recorded |= args.get("model_kwargs") or {}
    kwargs = recorded | options.model_kwargs
    if not timm.is_model(name):  # create_model would fetch hf-hub:…
        raise ValueError(
            f"{path}: timm has no model {name!r} of its own, and none is fetched: give --model "
            "NAME, one of timm.list_models()"
        )
    if others := OF_OTHER_WEIGHTS & kwargs.keys():
        raise ValueError(
            f"{path}: {min(others)}={kwargs[min(others)]!r} asks timm for other weights, which are "
            "not opened here: leave it out of the model's arguments"
        )
    try:
        model = _create(name, kwargs)
        model.load_state_dict(weights)
    except Exception as error:  # a bad argument can raise any type in timm's constructors
        raise ValueError(
            f"{path} does not fit {name} with {kwargs}: {said(error, 3)[:300]}; give the --model "
            "and --model-kwargs that it was trained with"
        ) from error
    config = resolve_data_config(args, model=model)
    config["crop_pct"] = options.crop_pct or config["crop_pct"]
    size = config["input_size"][-1]
    return Loaded(model.eval().to(device), label or name, path, size, config, device, options.amp)


def _create(name: str, kwargs: dict[str, Any]) -> Any:
    try:
        return timm.create_model(name, **{"dynamic_img_size": True, **kwargs})
    except TypeError as error:
        if "dynamic_img_size" not in str(error):
            raise
        return timm.create_model(name, **kwargs)  # convolutional networks take any size
