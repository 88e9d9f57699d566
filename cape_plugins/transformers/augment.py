"""Positions changed in training alone, in any of transformers' models with one rotary table.

>>> model = AutoModelForCausalLM.from_pretrained("…")           # Llama, Qwen, Mistral, Gemma, …
>>> undo = augment_positions(model, "pose_rope", pose_range=4096.0)

In training the table is made of positions that the variant has changed, each sample's by itself. In
evaluation, and in a checkpoint, the model is transformers' own: nothing is added to it but hooks,
which are not saved.
"""

import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cape_plugins.augment import AsGiven
from cape_plugins.options import declared
from cape_plugins.rotary import Rotary
from cape_plugins.transformers.cached import draws, remember
from cape_plugins.transformers.options import DECODER
from cape_plugins.transformers.relies import RELIES
from cape_plugins.variants import get, names


def augment_positions(model: nn.Module, pos: str, **options: Any) -> Callable[[], None]:
    """Let a variant change a rotary model's positions in training, sample by sample.

    Args:
        model: of transformers, with a head or without, also inside PEFT's. Its own scaling of
            frequencies (``rope_parameters``: linear, dynamic, yarn, llama3, …) stays; ``dynamic``
            scales by the greatest position of a batch, as augmented.
        pos: a variant that augments the positions of queries and keys that turn: ``cape_rope``,
            ``random_rope``, ``pose_rope``, or another package's.
        options: those of its augmentation, in tokens; defaults are those of ``cape_llama``.

    Returns:
        A function that takes it back.

    Raises:
        ValueError: the variant augments nothing, or does not turn queries and keys; an option that
            it does not take, or out of range; or the model does not make its rotary tables from
            ``position_ids`` in one place, is augmented already, or is split over ranks that share
            each sample (tensor parallelism), where each would draw positions of its own.
    """
    RELIES.check()
    if any((getattr(one, "_tp_size", None) or 1) > 1 for one in model.modules()):
        raise ValueError(
            f"{type(model).__name__} is split over ranks by tensor parallelism (tp_plan), and each "
            "would draw other positions for one sample: train it by data parallelism or FSDP"
        )
    hooks = _Hooks(_augmentation(pos, options))
    owner, tables = _tables_of(model)
    handles = [
        owner.register_forward_pre_hook(hooks.begin, with_kwargs=True),
        owner.register_forward_hook(hooks.end, always_call=True),
    ]
    for table in tables:
        table.cape_plugins_augments = pos  # type: ignore[assignment]
        handles.append(table.register_forward_pre_hook(hooks.augment, with_kwargs=True))
        handles.append(table.register_forward_hook(hooks.restore))

    def undo() -> None:
        for handle in handles:
            handle.remove()
        for table in tables:
            vars(table).pop("cape_plugins_augments", None)

    return undo


@dataclass
class _Forward:
    """One forward of a model that draws."""

    mask: Tensor | None  # True or 1 where a token is no padding
    given: Tensor | None = None  # positions, and what has become of them
    moved: Tensor | None = None
    kept: dict[str, Any] = field(default_factory=dict)  # of the table that is running


#: The forward that runs in this thread, so that replicas (nn.DataParallel) have their own; None
#: where nothing is drawn.
_FORWARD: ContextVar[_Forward | None] = ContextVar("_FORWARD", default=None)


class _Hooks:
    """Around a model's forward and that of its rotary tables."""

    def __init__(self, augmentation: AsGiven) -> None:
        self.augmentation = augmentation

    def begin(self, owner: nn.Module, args: Any, named: dict[str, Any]) -> None:
        """A forward begins: positions are drawn anew, unless it is a step with cached keys."""
        forward = None
        if draws(owner.training, _cache_in([*args, *named.values()]), named.get("use_cache")):
            mask = named.get("attention_mask")
            forward = _Forward(mask if isinstance(mask, Tensor) and mask.ndim == 2 else None)
        _FORWARD.set(forward)

    def end(self, owner: nn.Module, args: Any, out: Any) -> None:
        """A forward ends, or has failed: was a table asked for?"""
        forward = _FORWARD.get()
        _FORWARD.set(None)
        if out is None:  # it has failed
            return
        if forward is not None and forward.given is None:
            raise ValueError(f"{type(owner).__name__} has a rotary table, but does not use it")
        remember(_cache_in(out.values() if isinstance(out, dict) else out), forward is not None)

    def augment(self, table: nn.Module, args: Any, named: dict[str, Any]) -> Any:
        """Give a rotary table augmented positions, (B, N) float32; all tables the same."""
        forward = _FORWARD.get()
        if forward is None:
            return None
        forward.kept = {**vars(table), "_buffers": dict(table._buffers)}
        content, *rest = args or [named["x"]]
        positions = rest[0] if rest else named["position_ids"]
        if positions is not forward.given:
            forward.given = positions
            forward.moved = self._moved(positions, content, forward.mask)
        if rest:
            return (content, forward.moved, *rest[1:]), named
        return args, {**named, "position_ids": forward.moved}

    def _moved(self, positions: Tensor, content: Tensor, mask: Tensor | None) -> Tensor:
        if positions.ndim != 2:
            raise ValueError(
                f"position_ids of shape {list(positions.shape)}: augment_positions serves those of "
                "(B, N), one number for each token"
            )
        batch = len(content)
        where = positions.float().expand(batch, -1)
        known = where
        if mask is not None and mask.shape == where.shape:
            known = where.masked_fill(mask == 0, torch.nan)
        moved = self.augmentation.in_training(known[..., None], batch)[..., 0]
        return torch.where(moved.isnan(), where, moved)  # padding has positions here

    def restore(self, table: nn.Module, *_: Any) -> None:
        """Forget what a dynamic scaling has made of augmented positions."""
        forward = _FORWARD.get()
        if forward is not None:
            vars(table).update(forward.kept)
            forward.kept = {}


def _cache_in(values: Iterable[Any]) -> Cache | None:
    """The cache of keys among arguments or results, whatever transformers calls it."""
    return next((one for one in values if isinstance(one, Cache)), None)


def _augmentation(pos: str, given: dict[str, Any]) -> AsGiven:
    variant = get(pos, DECODER.axes)
    if not _is_able(pos):
        able = ", ".join(name for name in names(DECODER.axes) if _is_able(name))
        raise ValueError(
            f"{pos} does not augment positions of a rotary model: choose one of {able}"
        )
    chosen = DECODER.options(pos, given)
    own = declared(variant.augments, DECODER.axes)
    if of_model := [name for name in given if name not in own]:
        raise ValueError(
            f"{', '.join(of_model)}: the model has its own; {pos} augments by {', '.join(own)}"
        )
    settings = {name: value for name, value in chosen.items() if name in own}
    # evaluation is the model's own, and distances know no mean
    sets: dict[str, Any] = {**variant.augments.alone}
    return variant.augments(**settings, **sets)


def _is_able(pos: str) -> bool:
    variant = get(pos, DECODER.axes)
    turns = variant.attends is not None and issubclass(variant.attends, Rotary)
    return turns and variant.adds is None and variant.augments is not AsGiven


def _tables_of(model: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The rotary tables, and the module that has them; ValueError if they are not in one place."""
    name = type(model).__name__
    owners = [each for each in model.modules() if any(map(_is_rotary, each.children()))]
    tables = [each for owner in owners for each in owner.children() if _is_rotary(each)]
    if not owners:
        raise ValueError(
            f"{name} has no rotary table of transformers' kind (a module …RotaryEmbedding with "
            "inv_freq): train cape_llama or cape_eurobert with the variant instead"
        )
    if len(owners) > 1:
        raise ValueError(
            f"{name} makes rotary tables in {len(owners)} places ({type(owners[0]).__name__}, …), "
            "not in one for all layers: augment_positions cannot serve it"
        )
    for table in tables:
        kind = type(table).__name__
        if "position_ids" not in inspect.signature(type(table).forward).parameters:
            raise ValueError(f"{name}: {kind} does not take position_ids, so it cannot be served")
        if hasattr(table, "cape_plugins_augments"):
            raise ValueError(
                f"{name} has {table.cape_plugins_augments} already: call its undo first"
            )
        if _has_axes(table):
            raise ValueError(f"{name}: {kind} has positions of several axes: it cannot be served")
    return owners[0], tables


def _is_rotary(module: nn.Module) -> bool:
    frequencies = [name for name, _ in module.named_buffers() if name.endswith("inv_freq")]
    return bool(frequencies) and "Rotary" in type(module).__name__


def _has_axes(table: nn.Module) -> bool:
    """Whether positions are of time, height and width, as in models of text and images."""
    parameters = getattr(getattr(table, "config", None), "rope_parameters", None) or {}
    return "mrope_section" in parameters or hasattr(table, "mrope_section")
