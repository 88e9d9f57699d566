"""The variant of positions, kept in a checkpoint: nopos, sinpos and cape have the same weights.

>>> model.mark = VariantMark("cape", {"max_global_shift": 30.0}, "encoder_conf {}".format)
>>> weights = model.state_dict()                # with the mark
>>> keys = model.load_state_dict(weights)       # ValueError if another variant made them
"""

import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from cape_plugins import variants


class VariantMark(nn.Module):
    """Keeps the variant and its settings among the weights, and compares them when they load.

    Its state is one vector of float32, which ``model.half()`` does not touch and which the hosts'
    averaging of checkpoints leaves as it is.

    Args:
        pos: the variant.
        settings: by their names in the host; those that the variant takes are kept.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
        axes: 1 for sequences, 2 for images.
        added: settings of every variant that older checkpoints lack: name → value, and theirs.
    """

    def __init__(
        self,
        pos: str,
        settings: Mapping[str, float | None],
        spell: Callable[[str], str] = str,
        *,
        advice: str = "give another checkpoint",
        axes: int = 1,
        added: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__()
        taken = variants.get(pos).taken(axes)
        kept = {name: settings[name] for name in settings if name in taken}
        self.settings = {name: float(value) for name, value in kept.items() if value is not None}
        self.before = {name: before for name, (_, before) in (added or {}).items()}
        self.settings |= {name: value for name, (value, _) in (added or {}).items()}
        self.pos, self.spell, self.advice = pos, spell, advice

    def get_extra_state(self) -> Tensor:
        """The variant's number, then the settings: (1 + settings,) float32."""
        number = variants.get(self.pos).number
        return torch.tensor([number, *self.settings.values()], dtype=torch.float32)

    def set_extra_state(self, state: Tensor) -> None:
        """Compare with a checkpoint's; a setting that differs is logged as a warning.

        Raises:
            ValueError: the checkpoint is of another variant.
        """
        number, *found = state.tolist()
        numbers = {variant.number: pos for pos, variant in variants.VARIANTS.items()}
        pos = numbers.get(round(number), "unknown")
        if pos != self.pos:
            raise ValueError(
                f"the checkpoint was trained with {self.spell('pos')} {pos}, this model has "
                f"{self.pos}: set {self.spell('pos')} {pos}, or {self.advice}"
            )
        for index, (name, mine) in enumerate(self.settings.items()):
            theirs = found[index] if index < len(found) else self.before.get(name, mine)
            if not math.isclose(mine, theirs, rel_tol=1e-5):
                logging.warning(
                    f"the checkpoint was trained with {self.spell(name)} {theirs:g}, this model "
                    f"has {mine:g}"
                )

    def extra_repr(self) -> str:
        """The variant, for ``print(model)``."""
        return f"{self.pos!r}, {self.settings}"
