"""Weights of fairseq's own Transformer, or of another ``--pos``, in one of our models.

``--finetune-from-model`` may start from either.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from cape_plugins.mark import variant_of

logger = logging.getLogger(__name__)

_POSITIONS = {"positional", "positions"}  # in names of what a variant has learned
_OURS = _POSITIONS | {"residual_scale"}  # and of ADMIN's ω
# of fairseq's tables of positions and versions; our model has none of the former
_THEIRS = (".embed_positions.weight", ".embed_positions._float_tensor", ".version")
# fairseq 0.12.2's encoder layers store their weights a second time, for a fast path in inference
_COPIES = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")


def complete(state_dict: Mapping[str, Tensor], model: nn.Module) -> dict[str, Any]:
    """The weights, with the model's own where theirs, of fairseq or of another ``--pos``, has none.

    Those are the variant's (its table, its parameters in self-attention) and ADMIN's ω.
    A line in the log says which weights are taken. What another ``--pos`` has learned about
    positions is not. fairseq's positions are not: its sinusoids have another order and other
    frequencies than the paper's, and its tables begin at another index. The copies of weights that
    encoder layers of fairseq 0.12.2 hold are not either.

    Raises:
        ValueError: a weight has another size, which fairseq's own error would not say.
    """
    own, trained = model.state_dict(), variant_of(state_dict)
    taken = {
        name: value
        for name, value in state_dict.items()
        if not (
            name.endswith(_THEIRS) or _COPIES.fullmatch(name) or _POSITIONS & {*name.split(".")}
        )
    }
    for name, value in taken.items():
        if name in own and value.shape != own[name].shape:
            raise ValueError(
                f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in "
                "this model: give the model the checkpoint's sizes and dictionaries"
            )
    of_ours = [name for name in own if {*name.split(".")} & _OURS and ".mark." not in name]
    of_ours += [name for name in own if name.endswith(_THEIRS)]
    added = [name for name in of_ours if name not in taken]
    dropped = len(state_dict) - len(taken)
    has = "no --pos" if trained is None else f"--pos {trained}"
    logger.info(
        f"{len(taken)} weights are those of the checkpoint, which has {has}; {len(added)} are "
        f"this model's own ({', '.join(added[:3])}{', …' if len(added) > 3 else ''}); {dropped} of "
        "the checkpoint are not used: its positions, versions and copies of weights"
    )
    return {**taken, **{name: own[name] for name in added}}
