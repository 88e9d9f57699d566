"""The variant of positions, kept in a checkpoint: sinpos and cape have the same weights.

timm wants nothing in a state dict but weights under its own names: checkpoints load into its stock
models, strictly, and some by their order. So the mark is no entry but an attribute of one of the
weights. ``torch.save`` and ``torch.load`` keep it, weights_only too, and so does timm on the way to
``model.load_state_dict``; safetensors and averaging drop it, and then nothing is compared.
"""

import logging
from typing import Any

from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.alibi import Alibi
from cape_plugins.embedding import PositionalEmbedding2d

_logger = logging.getLogger(__name__)

_CARRIER = "blocks.0.norm1.weight"  # no conversion of timm's reshapes it
_ATTRIBUTE = "cape_plugins"

# the paper changes γ at evaluation
_NOT_TRAINED = {"extent"}


def add_mark(model: nn.Module) -> None:
    """Let a model's checkpoints bear its variant, and let it look at those that it loads."""
    model.register_state_dict_post_hook(_write)
    model.register_load_state_dict_pre_hook(_compare)


def settings(model: nn.Module) -> dict[str, Any] | None:
    """What a model was or is to be trained with: ``pos``, Δ, ε, λ as far as the variant takes them.

    The paper's ``frequency_scale`` of 1 goes without saying. None for models that are not ours.
    """
    position = getattr(getattr(model, "embeds", model), "position", None)
    if not isinstance(position, PositionalEmbedding2d):
        return None
    silent = _NOT_TRAINED | ({"frequency_scale"} if position.frequency_scale == 1 else set())
    taken = sorted(variants.get(position.pos).options - silent)
    found = {name: getattr(position, name) for name in taken if hasattr(position, name)}
    # ALiBi's distances are counted in patches of the training's grid
    alibi = next((one for one in model.modules() if isinstance(one, Alibi)), None)
    return {"pos": position.pos, **found, **({"unit": alibi.unit} if alibi else {})}


def read_mark(state_dict: dict[str, Tensor]) -> dict[str, Any] | None:
    """The settings that a checkpoint was trained with; None where it does not say so."""
    found = (getattr(weight, _ATTRIBUTE, None) for weight in state_dict.values())
    return next((one for one in found if one is not None), None)


def drop_mark(state_dict: dict[str, Tensor]) -> None:
    """Forget what the weights were trained with."""
    for weight in state_dict.values():
        if hasattr(weight, _ATTRIBUTE):
            delattr(weight, _ATTRIBUTE)


def adapt(state_dict: dict[str, Tensor], model: nn.Module) -> None:
    """Drop the mark, and say so if it is another's: what ``--pretrained`` starts from."""
    mine, theirs = settings(model), read_mark(state_dict)
    if theirs not in (None, mine):
        _logger.warning(f"the weights were trained with {told(theirs)}, now with {told(mine)}")
    drop_mark(state_dict)


def told(of: dict[str, Any] | None) -> str:
    """Settings, for messages."""
    return " ".join(f"{name}={value}" for name, value in (of or {}).items()).replace(", ", ",")


def _write(model: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    carrier = state_dict.get(prefix + _CARRIER)
    if isinstance(carrier, Tensor) and not isinstance(carrier, nn.Parameter):
        setattr(carrier, _ATTRIBUTE, settings(model))


def _compare(model: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    """Other shifts and scales are logged.

    Raises:
        ValueError: the checkpoint is of another variant.
    """
    mine, theirs = settings(model) or {}, read_mark(state_dict)
    if theirs in (None, mine):
        return
    if theirs.get("pos") != mine.get("pos"):
        raise ValueError(
            f"the checkpoint was trained with {told(theirs)}, this model has {told(mine)}: create "
            "the model it was trained as, or give another checkpoint (to start from its weights "
            "all the same: --pretrained --pretrained-path)"
        )
    _logger.warning(f"the checkpoint was trained with {told(theirs)}, this model has {told(mine)}")
