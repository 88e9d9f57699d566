"""The variant of positions, kept in a checkpoint: nopos, sinpos and cape have the same weights."""

import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from cape_plugins import variants


class VariantMark(nn.Module):
    """Keeps the variant and its settings among the weights, and compares them when they load.

    Its state is one vector of floats, because ESPnet averages checkpoints value by value and sums
    integers up. Checkpoints from before there was a mark load, whatever they are.

    Args:
        pos: the variant.
        settings: by their names in ``encoder_conf``; those that the variant takes are kept.
    """

    def __init__(self, pos: str, **settings: float) -> None:
        super().__init__()
        self.pos = pos
        taken = variants.get(pos).options
        self.settings = {name: value for name, value in settings.items() if name in taken}

    def get_extra_state(self) -> Tensor:
        """The variant's number, then the settings: (1 + settings,) float32."""
        number = variants.get(self.pos).number
        return torch.tensor([number, *self.settings.values()], dtype=torch.float32)

    def set_extra_state(self, state: Tensor) -> None:
        """Compare; other settings than the checkpoint's are logged as a warning.

        Raises:
            ValueError: the checkpoint is of another variant.
        """
        number, *found = state.tolist()
        known = {variant.number: pos for pos, variant in variants.VARIANTS.items()}
        pos = known.get(round(number), "unknown")
        if pos != self.pos:
            raise ValueError(
                f"the checkpoint was trained with encoder_conf pos: {pos}, this model has pos: "
                f"{self.pos}: set pos: {pos}, or give another checkpoint or --output_dir (to start "
                "from its weights all the same: --init_param FILE:::encoder.mark)"
            )
        for (name, mine), theirs in zip(self.settings.items(), found, strict=False):
            if not math.isclose(mine, theirs, rel_tol=1e-5):
                logging.warning(
                    f"the checkpoint was trained with encoder_conf {name}: {theirs:g}, "
                    f"this model has {mine:g}"
                )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *rest)
