"""Weights into our models: parts begin as they want, and the mark names the variant."""

from typing import Any

import torch
from torch import nn

from cape_plugins.mark import VariantMark, compare, say
from cape_plugins.part import Part


class Loads:
    """Mixed into all our models: their parts are initialised, and the mark is compared."""

    _keys_to_ignore_on_load_missing = (r"positions\.mark\.",)  # of transformers' own weights

    @torch.no_grad()
    def _init_weights(self: Any, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[misc]
        if isinstance(module, Part):  # one with buffers that are not saved, or with missing weights
            held = *module.parameters(), *module.buffers()
            loaded = [(one, one.clone()) for one in held if _is_loaded(one)]
            module.reset_parameters()
            for one, value in loaded:
                one.copy_(value)
        elif isinstance(module, VariantMark):  # what the checkpoint has not
            for name, value in module.settings.items():
                entry = getattr(module, name)
                if not _is_loaded(entry):
                    entry.copy_(torch.tensor(value, dtype=entry.dtype))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **named: Any) -> Any:
        """As transformers'.

        Raises:
            ValueError: the weights are of another variant, or of another value of an option that
                changes results in evaluation.
        """
        model, info = super().from_pretrained(  # type: ignore[misc]
            *args, output_loading_info=True, **named
        )
        for module in model.modules():
            if isinstance(module, VariantMark):
                _compare(module, info["unexpected_keys"])
            elif isinstance(module, Part):
                _fill_unsaved(module)
        return (model, info) if output_loading_info else model


def _is_loaded(one: torch.Tensor) -> bool:
    """Whether transformers has filled a parameter or buffer from a checkpoint."""
    return getattr(one, "_is_hf_initialized", False)


def _fill_unsaved(part: Part) -> None:
    """Numbers into buffers that are not saved: transformers has made them empty."""
    unsaved = dict(part.named_buffers()).keys() - part.state_dict().keys()
    if not unsaved:
        return
    new = dict(part.new().named_buffers())
    for name in unsaved:
        part.get_buffer(name).copy_(new[name])


def _compare(mark: VariantMark, unexpected: Any) -> None:
    """transformers has put a checkpoint's values where ours were: compare, then take ours again."""
    found = dict(mark.named_buffers())
    found |= {key.rpartition(".")[2]: torch.empty(0) for key in unexpected if ".mark." in key}
    say(compare(found, mark), [mark])
    mark.to(next(mark.buffers()).device)
