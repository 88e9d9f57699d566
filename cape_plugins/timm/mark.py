"""A checkpoint's variant, which is compared when it loads.

sinpos and cape have the same weights, so a checkpoint needs a mark that names its variant. timm
wants only weights under its own names in a state dict: its stock models load checkpoints strictly,
some by the order of entries. So the mark is not an entry but an attribute of one of the weights.
``torch.save`` and ``torch.load`` keep it, weights_only too, and so does timm on the way to
``model.load_state_dict``; safetensors and averaging drop it, and then nothing is compared.
"""

import logging
from typing import Any

from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.timm.positions import ImageSettings

_logger = logging.getLogger(__name__)

_CARRIER = "blocks.0.norm1.weight"  # no conversion of timm's reshapes it
_ATTRIBUTE = "cape_plugins"


def add_mark(model: nn.Module) -> None:
    """Mark a model's checkpoints with its variant, and compare the marks it loads."""
    model.register_state_dict_post_hook(_write)
    model.register_load_state_dict_pre_hook(_compare)


def settings(model: nn.Module) -> dict[str, Any] | None:
    """The settings a model is trained with: ``pos``, and those of Δ, ε, λ that the variant takes.

    ``frequency_scale`` is left out if it is the paper's 1. None for models that are not ours.
    """
    modules: list[Any] = [*model.modules()]
    held = [one for one in modules if isinstance(getattr(one, "settings", None), ImageSettings)]
    if not held:
        return None
    ours = held[0].settings
    kept = {name: getattr(ours, name) for name in sorted(vars(ours)) if ours.takes(name)}
    kept.pop("extent", None)  # the paper changes γ at evaluation
    if ours.frequency_scale == 1:
        kept.pop("frequency_scale", None)
    for name in variants.remembers(ours.pos):
        kept[name] = getattr(held[0].attention_settings, name)
    return {"pos": ours.pos, **kept}


def read_mark(state_dict: dict[str, Tensor], prefix: str = "") -> dict[str, Any] | None:
    """The settings that a checkpoint was trained with; None where it has no mark."""
    return getattr(state_dict.get(prefix + _CARRIER), _ATTRIBUTE, None)


def describe(of: dict[str, Any] | None) -> str:
    """Settings, for messages."""
    return " ".join(f"{name}={value}" for name, value in (of or {}).items()).replace(", ", ",")


def drop_mark(state_dict: dict[str, Tensor], model: nn.Module) -> None:
    """Let ``--pretrained`` start from weights of any variant; the log says what they were."""
    mine, theirs = settings(model), read_mark(state_dict)
    if theirs not in (None, mine):
        now = f"now with {describe(mine)}"
        _logger.warning(f"the weights were trained with {describe(theirs)}, {now}")
    if _CARRIER in state_dict:
        vars(state_dict[_CARRIER]).pop(_ATTRIBUTE, None)


def _write(model: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    carrier = state_dict.get(prefix + _CARRIER)
    if isinstance(carrier, Tensor) and not isinstance(carrier, nn.Parameter):
        setattr(carrier, _ATTRIBUTE, settings(model))


def _compare(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Log other shifts and scales.

    Raises:
        ValueError: the variant differs, or a setting that changes positions in evaluation:
            ``frequency_scale``, or alibi's unit, which depends on the model's ``img_size``.
    """
    mine, theirs = settings(model) or {}, read_mark(state_dict, prefix)
    if theirs is None or theirs == mine:
        return
    differ = f"the checkpoint was trained with {describe(theirs)}, this model has {describe(mine)}"
    if any(theirs.get(name) != mine.get(name) for name in ("pos", "frequency_scale", "unit")):
        raise ValueError(
            f"{differ}: create the model it was trained as, or give another checkpoint (to start "
            "from its weights all the same: --pretrained --pretrained-path)"
        )
    _logger.warning(differ)
