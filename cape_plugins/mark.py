"""Which variant made these weights, kept among them: nopos, sinpos and cape have the same weights.

The name is a key of the state dict, ``….variant_cape``, of an entry without elements: arithmetic on
weights cannot change a key. Settings are scalars under their own names.

    >>> mark = VariantMark("cape", {"max_global_shift": 5.0, "frequency_scale": 1.0}, TRAINING)
    >>> mark.state_dict().keys()
    odict_keys(['variant_cape', 'max_global_shift', 'frequency_scale'])
    >>> _ = mark.load_state_dict(weights)   # RefusedCheckpoint if another variant made them
    >>> compare_first(model)                # … before anything of the model has changed
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

_VARIANT = "variant_"
PACKAGE = "package"  #: setting that is the module of another package's variant
# How far arithmetic on weights may move a number: an exponential moving average in float32 with
# decay d is off by up to 6e-8 / (1 - d) of it, 6e-4 with 0.9999. In bfloat16 a step is 4e-3.
_SAME = 8e-3


class RefusedCheckpoint(ValueError):
    """Weights are of another variant, or of other settings, than the model that loads them."""


class VariantMark(nn.Module):
    """Keeps the variant and its settings among the weights, and compares them when they load.

    Its entries are buffers, so that all tools know them. A checkpoint's never replace its own, and
    no cast does: what it knows is in Python.

    Args:
        pos: the variant.
        settings: option → value: numbers, or words, which are keys too (``overflow=wrap``).
            Others are left out.
        training_only: options whose other value is a warning, as they change nothing in
            evaluation. Another value of the rest is an error.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.

    Attributes:
        remedy: (option, the checkpoint's value) → what a user does to build the model that it
            fits, where that is not to set the value.
    """

    remedy: Callable[[str, Any], str | None] | None = None

    def __init__(
        self,
        pos: str,
        settings: Mapping[str, Any],
        training_only: Collection[str] = (),
        spell: Callable[[str], str] = str,
        advice: str = "give another checkpoint",
    ) -> None:
        super().__init__()
        self.pos, self.training_only = pos, frozenset(training_only)
        self.spell, self.advice = spell, advice
        self.settings = {k: v for k, v in settings.items() if _is_numeric(v)}
        self.words = {k: v for k, v in settings.items() if isinstance(v, str)}
        # Warnings are given once for a model and its copies: a host loads a checkpoint into both
        # halves of a model, or into the average of its weights too.
        self._said: set[str] = set()
        self._fill(None)

    def _fill(self, device: torch.device | None) -> None:
        self.register_buffer(_VARIANT + self.pos, torch.empty(0, device=device))
        for name, word in self.words.items():
            self.register_buffer(f"{name}={_as_key(word)}", torch.empty(0, device=device))
        for name, value in self.settings.items():
            kept = torch.tensor(value, dtype=torch.float32, device=device)
            self.register_buffer(name, kept)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "VariantMark":
        """Move to a device; a cast, or memory without values, changes nothing."""
        self._fill(fn(getattr(self, _VARIANT + self.pos)).device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local: dict[str, Any], *rest: Any
    ) -> None:
        """Compare with a checkpoint's entries; one without a mark is not compared.

        Raises:
            RefusedCheckpoint: the checkpoint is of another variant, or a setting that changes
                results in evaluation has another value.
        """
        found = _within(state_dict, prefix)
        say(compare(found, self), [self])
        here = getattr(self, _VARIANT + self.pos)
        if local.get("assign_to_params_buffers"):  # then a model may leave the meta device
            here = found.get(_VARIANT + self.pos, torch.empty(0, device="cpu"))
        self._fill(here.device)  # torch.distributed.checkpoint has loaded into its entries


def compare_first(model: nn.Module) -> None:
    """Let a model compare all marks in it before its ``load_state_dict`` copies anything.

    Without this, a mark compares when its turn comes: a checkpoint that it refuses has then changed
    the modules before it. Entries that a checkpoint lacks are not compared, so parts of one load.
    """
    model.register_load_state_dict_pre_hook(_compare_all)


def _compare_all(model: nn.Module, entries: Mapping[str, Any], prefix: str, *_: Any) -> None:
    marks, warnings = [], set()
    for name, mark in model.named_modules(prefix=prefix.rstrip(".")):
        if isinstance(mark, VariantMark):
            marks.append(mark)
            warnings |= {*compare(_within(entries, f"{name}." if name else ""), mark)}
    say(warnings, marks)


def _within(entries: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): one for k, one in entries.items() if k.startswith(prefix)}


def say(warnings: Iterable[str], marks: Iterable[VariantMark]) -> None:
    """Log warnings that no mark has given, as given by all of them."""
    said = set().union(*(mark._said for mark in marks))
    for warning in sorted({*warnings} - said):
        logging.getLogger(__name__).warning(warning)
    for mark in marks:
        mark._said |= {*warnings}


def compare(found: Mapping[str, Tensor], mark: VariantMark) -> list[str]:
    """Compare the entries of a checkpoint's mark with a model's.

    Returns:
        Warnings: settings with another value that change nothing in evaluation.

    Raises:
        RefusedCheckpoint: as when a :class:`VariantMark` loads weights.
    """
    spell, warnings = mark.spell, []
    # two names: of two variants that somebody put together (ESPnet's --init_param does)
    named = [key.removeprefix(_VARIANT) for key in found if key.startswith(_VARIANT)]
    if theirs := [pos for pos in named if pos != mark.pos]:
        raise RefusedCheckpoint(
            f"the checkpoint was trained with {spell('pos')} {theirs[0]}, this model has "
            f"{mark.pos}: {_remedy(mark, 'pos', theirs[0])}, or {mark.advice}"
        )
    for name, value in {**mark.words, **mark.settings}.items():
        trained = _kept(found, name, value)
        if trained is None or _is_same(trained, value):
            continue
        if name == PACKAGE:
            raise ValueError(
                f"the checkpoint was trained with the {mark.pos} of {trained}, this model has that "
                f"of {value}: install the former, or {mark.advice}"
            )
        told = f"the checkpoint was trained with {spell(name)} {_shown(trained)}, this model has "
        told += _shown(value)
        if name not in mark.training_only:
            raise RefusedCheckpoint(f"{told}: {_remedy(mark, name, trained)}, or {mark.advice}")
        warnings.append(told)
    return warnings


def _kept(found: Mapping[str, Tensor], name: str, value: Any) -> Any:
    """The value of a setting in a checkpoint: numbers, or a word, ``value`` if it is one; or None.

    None is of no such entry, or of one on the meta device, which has no number.
    """
    if name in found:
        return None if found[name].is_meta else found[name].to("cpu", torch.float32).tolist()
    words = [key.partition("=")[2] for key in found if key.startswith(f"{name}=")]
    own = _as_key(value) if isinstance(value, str) else None
    return value if own in words else next(iter(words), None)


def _is_same(trained: Any, value: Any) -> bool:
    """Whether a checkpoint's value is a model's, but for what arithmetic on weights does to it."""
    if isinstance(trained, str) or isinstance(value, str):
        return trained == value
    # whatever the default device and dtype are
    mine, other = (torch.tensor(x, dtype=torch.float32, device="cpu") for x in (value, trained))
    return mine.shape == other.shape and torch.allclose(mine, other, rtol=_SAME, atol=1e-12)


def _remedy(mark: VariantMark, name: str, trained: Any) -> str:
    told = None if mark.remedy is None else mark.remedy(name, trained)
    return told or f"set {mark.spell(name)} {_shown(trained)}"


def variant_of(entries: Iterable[str]) -> str | None:
    """The variant that a mark's entries name (keys of a state dict, with any prefix), or None."""
    for key in entries:
        last = key.rpartition(".")[2]
        if last.startswith(_VARIANT):
            return last.removeprefix(_VARIANT)
    return None


def _as_key(word: str) -> str:
    return word.replace(".", "_")  # a buffer's name has no dot


def _is_numeric(value: Any) -> bool:
    parts = value if isinstance(value, tuple | list) else (value,)
    return bool(parts) and all(isinstance(one, Real) for one in parts)


def _shown(value: Any) -> str:
    """A word, or numbers as people write them: a checkpoint's are float32."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    return f"{value:g}"
