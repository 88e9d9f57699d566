"""From a name or a checkpoint file to a timm model that takes images of any size."""

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import clean_state_dict, naflexvit
from torch import Tensor

import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.command import said
from cape_plugins.timm import mark
from cape_plugins.timm import naflexvit as cape_naflexvit

_SOURCES = ("local-dir:", "hf-hub:", "hf_hub:")


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        checkpoint: a file (train.py's ``.pth.tar``, a plain state dict, ``.safetensors``), a
            ``local-dir:``/``hf-hub:`` name, or a timm name that has weights.
        model: timm's name of the architecture. Default: the file's own record of it.
        model_kwargs: arguments of the model; they win over the file's record.
        use_ema: take the averaged weights of the file.
        other_positions: let ``model`` and ``model_kwargs`` contradict what the checkpoint says of
            its variant and its settings.
    """

    checkpoint: str
    model: str | None = None
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    use_ema: bool = False
    other_positions: bool = False


@dataclass
class Loaded:
    """A model ready to be evaluated.

    Attributes:
        model: in eval mode, on the CPU.
        name: timm's name of the architecture.
        checkpoint: as the source has it.
        train_size: image size in pixels that it was trained at, as far as known: train.py's
            ``input_size`` or ``img_size``, else the model's own.
        train_args: train.py's arguments; empty if the file does not hold them.
    """

    model: Any
    name: str
    checkpoint: str
    train_size: int
    train_args: dict[str, Any]

    @property
    def num_classes(self) -> int:
        """Outputs of the head."""
        return int(self.model.num_classes)


def load(source: Source) -> Loaded:
    """Create the model and load its weights, all of them.

    Models whose constructor has ``dynamic_img_size`` get it, so that one checkpoint is tested at
    all sizes: timm's abspos ViTs then interpolate their table in the forward.

    Raises:
        ValueError: no such file or name, a file that cannot be read, no EMA weights where they
            are asked for, weights that do not fit the model, or another variant or other settings
            than the checkpoint's.
    """
    if Path(source.checkpoint).is_file():
        return _load_file(source)
    if source.model is None and _is_name(source.checkpoint):
        return _load_name(source)
    raise ValueError(
        f"no checkpoint file {source.checkpoint}"
        + ("" if source.model else ", and no timm model of that name with weights")
        + ": give a file, local-dir:FOLDER, hf-hub:USER/NAME or a timm name"
    )


def patch_size(model: Any) -> tuple[int, int] | None:
    """(height, width) in pixels of a patch that image sizes must be multiples of, or None."""
    for name in ("patch_embed", "embeds"):
        embed = getattr(model, name, None)
        size = getattr(embed, "patch_size", None)
        if size is not None and not getattr(embed, "dynamic_img_pad", False):
            return (size, size) if isinstance(size, int) else tuple(size)
    return None


def check_size(loaded: Loaded, size: int) -> None:
    """Raise ValueError unless the model takes square images of this size in pixels."""
    if size < 1:
        raise ValueError(
            f"{loaded.name} (trained at {loaded.train_size}) would need images of {size} pixels: "
            "give larger --resolutions, or a smaller --tta-step"
        )
    patch = patch_size(loaded.model)
    if patch is not None and any(size % side for side in patch):
        step = math.lcm(*patch)
        below, above = size // step * step, (size // step + 1) * step
        nearest = f"{below} and {above}" if below else f"{above}"
        raise ValueError(
            f"image size {size} is not divisible by the patches of {loaded.name} "
            f"({patch[0]} × {patch[1]} pixels): the nearest sizes that are: {nearest}"
        )
    cfg = getattr(loaded.model, "pretrained_cfg", None) or {}
    is_dynamic = getattr(loaded.model, "dynamic_img_size", False) or hasattr(loaded.model, "embeds")
    if cfg.get("fixed_input_size", False) and not is_dynamic and size != loaded.train_size:
        raise ValueError(
            f"{loaded.name} takes images of {loaded.train_size} × {loaded.train_size} only, "
            f"not {size}: leave it out or test it at that size"
        )


def takes_rectangles(loaded: Loaded) -> bool:
    """Whether the model takes images of other sizes than the one it was trained at."""
    try:
        check_size(loaded, 2 * loaded.train_size)
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    return text.startswith(_SOURCES) or timm.is_model(text.split(".")[0])


def _load_name(source: Source) -> Loaded:
    name = source.checkpoint
    try:
        model = _create(name, pretrained=True, **source.model_kwargs)
        trained_with = mark.settings(_create(name)) if source.model_kwargs else None
    except Exception as error:  # the hub's client has many kinds
        raise ValueError(f"{name} cannot be loaded: {said(error)}") from error
    _check_positions(source, trained_with, model)
    _check_finite(model.state_dict(), name)
    architecture = model.pretrained_cfg.get("architecture") or name
    return Loaded(model.eval(), architecture, name, _train_size(model, {}), {})


def _load_file(source: Source) -> Loaded:
    content = _read(source.checkpoint)
    args = content.get("args")
    train_args = vars(args) if isinstance(args, argparse.Namespace) else args
    train_args = train_args if isinstance(train_args, dict) else {}
    weights = _weights(content, source)
    trained_as = train_args.get("model") or content.get("arch")
    name = source.model or trained_as
    if not isinstance(name, str):
        raise ValueError(
            f"{source.checkpoint} does not say which model it is: give --model NAME (timm's name)"
        )
    if not _is_name(name):
        raise ValueError(
            f"unknown model {name!r} (for {source.checkpoint}): timm.list_models() has the names"
        )
    recorded = {
        "global_pool": train_args.get("gp"),
        "in_chans": train_args.get("in_chans"),
        "num_classes": _head_size(name, weights),
    }
    shared: dict[str, Any] = {key: one for key, one in recorded.items() if one is not None}
    trained = shared | (train_args.get("model_kwargs") or {})
    kwargs = trained | source.model_kwargs
    try:
        model = _create(name, **kwargs)
        if "img_size" not in kwargs and (size := _table_size(model, weights)) is not None:
            model = _create(name, **kwargs, img_size=size)
        asks = bool(source.model or source.model_kwargs)
        # the record of a training does not always tell the grid that ALiBi counted in
        asks |= "unit" in (mark.read_mark(weights) or {})
        trained_with = _trained_with(weights, trained_as, trained) if asks else None
    except Exception as error:  # timm's constructors raise what a bad argument leads to
        raise ValueError(
            f"{name} cannot be created with {kwargs} (for {source.checkpoint}): {said(error)}"
        ) from error
    _check_positions(source, trained_with, model)
    mark.drop_mark(weights)
    if hasattr(model, "embeds") and "patch_embed.proj.weight" in weights:  # use_naflex=True
        stock = "pos_embed" in weights
        weights = (naflexvit if stock else cape_naflexvit).checkpoint_filter_fn(weights, model)
    _fill(model, weights, name, source.checkpoint)
    size = _train_size(model, train_args)
    return Loaded(model.eval(), name, source.checkpoint, size, train_args)


def _trained_with(
    weights: dict[str, Tensor], name: Any, kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """Variant and settings by the weights' mark, else those of the recorded model."""
    if (marked := mark.read_mark(weights)) is not None:
        return marked
    known = isinstance(name, str) and _is_name(name)
    return mark.settings(_create(name, **kwargs)) if known else None


def _check_positions(source: Source, trained: dict[str, Any] | None, model: Any) -> None:
    """Raise ValueError if the model's positions are not those that the weights were trained with.

    Args:
        source: what the user asks for.
        trained: as :func:`cape_plugins.timm.mark.settings`; None if it is not known.
        model: which was made of the source.
    """
    asked = mark.settings(model)
    if source.other_positions or None in (trained, asked) or trained == asked:
        return
    told = f"{source.checkpoint} was trained with {mark.told(trained)}, "
    if source.model or source.model_kwargs:
        told += f"--model and --model-kwargs ask for {mark.told(asked)}: leave them out"
    else:
        told += (
            f"what it tells of its model makes {mark.told(asked)}: give --model-kwargs img_size=N"
        )
    raise ValueError(f"{told}, or give --other-positions too")


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


def _weights(content: dict[str, Any], source: Source) -> dict[str, Tensor]:
    keys = ("state_dict_ema", "model_ema") if source.use_ema else ("state_dict", "model")
    found = [content[key] for key in keys if isinstance(content.get(key), dict)]
    if source.use_ema and not found:
        raise ValueError(f"{source.checkpoint} holds no EMA weights: leave out --use-ema")
    weights = clean_state_dict(found[0] if found else content)
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{source.checkpoint} holds no state dict")
    return weights


def _head_size(name: str, weights: dict[str, Tensor]) -> int | None:
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    classifier = cfg.classifier if cfg else None
    first = classifier[0] if isinstance(classifier, tuple | list) else classifier
    head = weights.get(f"{first}.weight")
    return None if head is None else head.shape[0]


def _table_size(model: Any, weights: dict[str, Tensor]) -> int | None:
    """Image size of the checkpoint's position table where it is not the model's own."""
    table, mine = weights.get("pos_embed"), getattr(model, "pos_embed", None)
    if table is None or not isinstance(mine, Tensor) or not hasattr(model, "patch_embed"):
        return None
    if table.ndim != 3 or mine.ndim != 3 or table.shape[1] == mine.shape[1]:
        return None
    height, width = model.patch_embed.grid_size
    patches = table.shape[1] - (mine.shape[1] - height * width)
    side = math.isqrt(max(patches, 0))
    if side == 0 or side**2 != patches:
        raise ValueError(
            f"its position table has {patches} patches, which make no square: give its size as "
            "--model-kwargs img_size=(HEIGHT,WIDTH)"
        )
    return side * model.patch_embed.patch_size[0]


def _check_finite(weights: dict[str, Tensor], checkpoint: str) -> None:
    bad = [
        key
        for key, value in weights.items()
        if value.is_floating_point() and not value.isfinite().all()
    ]
    if bad:
        raise ValueError(
            f"{checkpoint} has NaN or infinite numbers in {len(bad)} of {len(weights)} tensors, "
            f"such as {bad[0]}: its training failed, give an earlier checkpoint"
        )


def _fill(model: Any, weights: dict[str, Tensor], name: str, checkpoint: str) -> None:
    wanted, given = (
        {key: tuple(value.shape) for key, value in state.items()}
        for state in (model.state_dict(), weights)
    )
    problems = [
        f"{key} is {given[key]} in the file and {wanted[key]} in the model"
        for key in wanted
        if key in given and given[key] != wanted[key]
    ]
    problems += [f"{key} is missing in the file" for key in wanted if key not in given]
    problems += [f"the model has no {key}" for key in given if key not in wanted]
    if problems:
        others = f" (and {len(problems) - 1} more such differences)" if len(problems) > 1 else ""
        raise ValueError(
            f"{checkpoint} does not fit {name}: {problems[0]}{others}; give the --model and "
            "--model-kwargs that it was trained with"
        )
    _check_finite(weights, checkpoint)
    model.load_state_dict(weights)


def _train_size(model: Any, train_args: dict[str, Any]) -> int:
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)
    own = own or getattr(getattr(model, "embeds", None), "default_img_size", None)
    size = train_args.get("input_size") or train_args.get("img_size") or own
    size = size or model.pretrained_cfg["input_size"]
    return int(size if isinstance(size, int) else size[-1])
