"""A mark of the variant in checkpoints: weights alone do not tell sinpos from cape."""

from typing import Any

import torch
from torch import Tensor, nn

# numbers are in checkpoints: only ever append
_NUMBERS = {"nopos": 0, "abspos": 1, "sinpos": 2, "cape": 3, "relpos": 4}


class Variant(nn.Module):
    """Keeps the variant's number among the weights; fairseq then asks it about a checkpoint's.

    Args:
        pos: the variant.
    """

    def __init__(self, pos: str) -> None:
        super().__init__()
        self.pos = pos
        self.register_buffer("number", torch.tensor([_NUMBERS[pos]]))

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """fairseq calls this before it loads weights, to resume, fine-tune or generate.

        Raises:
            ValueError: the weights are of another variant.
        """
        key = f"{name}.number"
        found = int(state_dict.setdefault(key, self.number)[0])  # absent: before there was a mark
        if found != _NUMBERS[self.pos]:
            pos: Any = {number: pos for pos, number in _NUMBERS.items()}.get(found, "unknown")
            raise ValueError(
                f"the checkpoint was trained with --pos {pos}, this model has --pos {self.pos}: "
                f"train with --pos {pos}, or give another --save-dir, --restore-file or "
                "--finetune-from-model"
            )
