"""What our ViTs do with weights of other models: of other variants and sizes, timm's own, .npz.

Reading and loading files is timm's. The mark in checkpoints is the core's: it refuses another
variant's, but ``--pretrained`` may start from weights of any.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cape_plugins.mark import VariantMark, compare_first, variant_of
from cape_plugins.part import Part

_logger = logging.getLogger(__name__)
_MARK = "position.mark."  # in the names of the mark's entries


class LoadsWeights(nn.Module):
    """Mixed into our ViTs: errors about files that do not fit, and what gets no weight decay."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As PyTorch's.

        Raises:
            ValueError: the weights are of another variant; or of another width or number of blocks,
                and not a part that is loaded with ``strict=False``.
        """
        if strict:
            check_size(self, state_dict)
        return super().load_state_dict(state_dict, strict, assign)

    def no_weight_decay(self) -> set[str]:
        """timm's set, and what is learned about positions, as timm's own tables.

        A variant says which of its parameters these are (:meth:`cape_plugins.part.Part`).
        """
        found = {name for name, _ in self.named_parameters() if is_positional(name)}
        for prefix, module in self.named_modules():
            if isinstance(module, Part):
                decayed = {name for name, _ in module.named_parameters()}
                found -= {f"{prefix}.{name}" for name in decayed - module.no_weight_decay()}
        return {*super().no_weight_decay(), *found}  # type: ignore[misc]

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        """What timm calls for an .npz, Google's layout, which our ViTs do not read.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{checkpoint_path} is not for {type(self).__name__}: load it into timm's own ViT of "
            "the same size, torch.save that model's state_dict(), and give this file"
        )


def prepare_loading(model: nn.Module) -> None:
    """What our ViTs do last in their constructors."""
    compare_first(model)
    model.register_load_state_dict_pre_hook(drop_table)
    # a ViT has no other buffers, and DDP would synchronize those of the mark at each step
    marks = [name for name, _ in model.named_buffers() if _MARK in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, marks)


def drop_mark(state_dict: dict[str, Any], mark: VariantMark) -> None:
    """Drop a checkpoint's mark; a line in the log says what its model was, if not like this."""
    theirs = {name: state_dict.pop(name) for name in [*state_dict] if _MARK in name}
    trained, now = _described(theirs), _described(dict(mark.named_buffers()))
    if theirs and trained != now:
        _logger.warning(f"the weights were trained with {trained}, now with {now}")


def _described(entries: Mapping[str, Tensor]) -> str:
    named = [f"pos={variant_of(entries)}"]
    for name, one in sorted(entries.items()):
        if one.numel():
            value = ",".join(f"{number:g}" for number in one.flatten().tolist())
            named.append(f"{name.rpartition('.')[2]}={value}")
    return " ".join(named)


def drop_table(model: Any, state_dict: dict[str, Any], prefix: str = "", *_: Any) -> None:
    """Drop a standard ViT's table of positions, with a line in the log.

    The table's row for the class token becomes that token's position. A table with a row for each
    of the model's patches, or a square number of rows, has no such row (timm's no_embed_class), and
    the position becomes zero. The function is also a hook before ``load_state_dict``, because
    timm's ``--initial-checkpoint`` calls no filter. ``prefix`` is given if the model is a part of
    another.
    """
    embeds = getattr(model, "embeds", model)
    within = prefix if embeds is model else f"{prefix}embeds."
    tables = (f"{prefix}pos_embed", f"{within}pos_embed")  # of a ViT, of a NaFlexVit
    for name in [name for name in state_dict if name.startswith(tables)]:
        table = state_dict.pop(name)
        _logger.warning(
            f"dropped {name} {tuple(table.shape)} of the checkpoint: positions are computed here, "
            "and the other weights, which are kept, learn to use them in training"
        )
        if table.ndim == 3 and embeds.cls_pos_embed is not None:
            rows = table.shape[1]
            patches = model.patch_embed.num_patches if embeds is model else 0
            is_square = math.isqrt(rows) ** 2 == rows
            of_patches = rows == patches or (is_square and rows != patches + 1)
            has_row = f"{prefix}cls_token" in state_dict and not of_patches
            state_dict[f"{within}cls_pos_embed"] = table[:, :1] * (1.0 if has_row else 0.0)


def check_size(model: Any, state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError if weights are of another width or number of blocks than the model."""
    norm = state_dict.get("blocks.0.norm1.weight")
    blocks = {name.split(".")[1] for name in state_dict if name.startswith("blocks.")}
    if norm is not None and (len(norm), len(blocks)) != (model.embed_dim, len(model.blocks)):
        raise ValueError(
            f"the checkpoint has width {len(norm)} with {len(blocks)} blocks, the model width "
            f"{model.embed_dim} with {len(model.blocks)} blocks: create the model it fits"
        )


def fill_positional(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Pretrained weights of any variant, with what this model learns about positions.

    What only the checkpoint has is dropped, what only the model has stays as it was initialized,
    and the log says so. Layer scale that the checkpoint lacks becomes 1: it was trained without.
    """
    own = {name: one for name, one in model.state_dict().items() if _MARK not in name}
    ours = {name for name in own if is_positional(name)}
    theirs = {name for name in weights if is_positional(name)}
    if dropped := theirs - ours:
        _logger.warning(f"dropped of the checkpoint: {', '.join(sorted(dropped))}")
    if kept := ours - theirs:
        _logger.warning(f"not in the checkpoint, as initialized: {', '.join(sorted(kept))}")
    found = {name: torch.ones_like(one) for name, one in own.items() if name.endswith(".gamma")}
    found |= {name: own[name] for name in kept}
    return found | {name: one for name, one in weights.items() if name not in dropped}


def is_positional(name: str) -> bool:
    """Whether a weight of this name is learned about positions; like timm's it gets no decay."""
    return not {"position", "positional", "cls_pos_embed"}.isdisjoint(name.split("."))
