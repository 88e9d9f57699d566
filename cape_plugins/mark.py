"""The variant of positions, kept in a checkpoint: nopos, sinpos and cape have the same weights.

>>> model.mark = VariantMark("cape", {"max_global_shift": 30.0}, "encoder_conf {}".format)
>>> weights = model.state_dict()                # with the mark
>>> keys = model.load_state_dict(weights)       # ValueError if another variant made them
"""

import logging
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from cape_plugins import variants

# A setting's place in a mark is its place here, for all variants. Only ever append.
SLOTS = ["max_global_shift", "max_local_shift", "max_global_scale", "frequency_scale"]
SLOTS += ["random_range", "relpos_context", "abspos_context", "source_scale"]
SLOTS += ["unit", "content_scale", "square"]
# The last is no setting: (number of the variant - _MIDDLE)². The mean of two variants' numbers may
# be a third variant's number; the mean of their squares is never the square of that.
_SQUARE, _MIDDLE = "square", 7
# Stands where a variant does not have a setting; settings are ≥ 0. It is not NaN: tools that
# compare checkpoints would find NaN different from itself, and see a training that diverged.
ABSENT = -1.0
# The first marks had no slots: at most so many numbers, those of the variant's settings in a row.
_GAPLESS = 6
# How far arithmetic on weights may move a number. An exponential moving average in float32 with
# decay d is off by up to 6e-8 / (1 - d) of it: 6e-4 with 0.9999. In bfloat16 a step is 4e-3.
_SAME = 4e-3  # relative, of a setting: beyond it there is a warning
_NEAR = 0.02  # absolute, of the variant's number: beyond it there is an error
_NEAR_SQUARE = 0.5  # absolute: averages whose mean is a third variant's number are off by ≥ 1


class VariantMark(nn.Module):
    """Keeps the variant and its settings among the weights, and compares them when they load.

    Its state is one vector of float32. It is no parameter or buffer, so training does not move it,
    and ``model.half()`` leaves it alone. Averages of checkpoints move its numbers by rounding, so
    numbers that are near enough count as equal.

    Args:
        pos: the variant.
        settings: by their names in the host; those that the variant takes or wants remembered
            (:attr:`cape_plugins.attention.PositionalAttention.remembers`) are kept.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
        added: settings that all variants have and that checkpoints from before they were added
            lack: name → (this model's value, the value those were trained with).

    Raises:
        ValueError: unknown variant, or a setting that has no slot.
    """

    def __init__(
        self,
        pos: str,
        settings: Mapping[str, float | None],
        spell: Callable[[str], str] = str,
        *,
        advice: str = "give another checkpoint",
        added: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        kept = variants.get(pos).taken(axes=1) | variants.remembers(pos)
        given = {name: settings[name] for name in settings if name in kept}
        given |= {name: value for name, (value, _) in added.items()}
        self.before = {name: before for name, (_, before) in added.items()}
        self.settings = {k: float(v) for k, v in given.items() if v is not None}
        if unknown := self.settings.keys() - set(SLOTS):
            raise ValueError(f"no slot in a mark, append to SLOTS: {', '.join(sorted(unknown))}")
        self.pos, self.spell, self.advice = pos, spell, advice

    def get_extra_state(self) -> Tensor:
        """The variant's number, then a value for each slot, ABSENT where it has none: float32."""
        number = variants.get(self.pos).number
        kept = {**self.settings, _SQUARE: _square(number)}
        slots = [kept.get(name, ABSENT) for name in SLOTS]
        return torch.tensor([number, *slots], dtype=torch.float32)

    def set_extra_state(self, state: Tensor) -> None:
        """Compare with a checkpoint's; a setting that both have and that differs is a warning.

        Raises:
            ValueError: the checkpoint is of another variant, or an average of several.
        """
        number, *found = state.tolist()
        square = dict(zip(SLOTS, found, strict=False)).get(_SQUARE)  # older checkpoints have none
        pos = self._variant_of(number, square)
        if pos != self.pos:
            raise ValueError(
                f"the checkpoint was trained with {self.spell('pos')} {pos}, this model has "
                f"{self.pos}: set {self.spell('pos')} {pos}, or {self.advice}"
            )
        gapless = len(state) <= _GAPLESS
        names = [name for name in SLOTS if not gapless or name in self.settings]
        kept = {k: v for k, v in zip(names, found, strict=False) if v >= -_SAME}
        for name, mine in self.settings.items():
            theirs = kept.get(name, self.before.get(name, mine))
            if not math.isclose(mine, theirs, rel_tol=_SAME):
                differs = f"{self.spell(name)} {theirs:g}, this model has {mine:g}"
                logging.warning(f"the checkpoint was trained with {differs}")

    def _variant_of(self, number: float, square: float | None) -> str:
        """The variant whose number this is, but for rounding; ValueError if it is of none."""
        numbers = {variant.number: pos for pos, variant in variants.VARIANTS.items()}
        nearest = round(number) if math.isfinite(number) else -1
        if nearest in numbers and abs(number - nearest) <= _NEAR:
            if square is None or abs(square - _square(nearest)) <= _NEAR_SQUARE:
                return numbers[nearest]
            raise ValueError(
                "the checkpoint is of no single variant: were checkpoints of two variants "
                f"averaged? The mean of their numbers is that of {numbers[nearest]}, the mean of "
                f"their squares is not. This model has {self.spell('pos')} {self.pos}: "
                f"{self.advice}"
            )
        below = above = None
        if math.isfinite(number):
            below, above = numbers.get(math.floor(number)), numbers.get(math.ceil(number))
        if below and above and below != above:
            what = f"is of neither {below} nor {above}: were checkpoints of two variants averaged?"
        else:
            what = "is of no variant that this version knows: was it made by a later version?"
        raise ValueError(
            f"the checkpoint {what} Its mark has {number:g} where a variant has its number. This "
            f"model has {self.spell('pos')} {self.pos}: {self.advice}"
        )

    def extra_repr(self) -> str:
        """The variant, for ``print(model)``."""
        return f"{self.pos!r}, {self.settings}"


def _square(number: int) -> float:
    return float((number - _MIDDLE) ** 2)
