"""The checkpoint that a training starts from: its options, and whether its positions are these."""

import logging
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from omegaconf import OmegaConf

from cape_plugins.fairseq.options import ANOTHER_CHECKPOINT, plain_options

logger = logging.getLogger(__name__)


def check_start(pos: str, checkpoint: Any) -> None:
    """Check that a training with ``--pos pos`` may start from its checkpoint, if it has one.

    ``checkpoint`` has fairseq's checkpoint options as attributes.

    Raises:
        ValueError: the checkpoint was trained with another ``--pos`` or with fairseq's own
            positions, unless ``--finetune-from-model`` takes its weights alone.
    """
    path, weights_alone = _start_of(checkpoint)
    if path is None or weights_alone:
        return
    theirs = stored_options(path).get("pos")
    if theirs == pos:
        return
    made, instead = "fairseq's own positions", ""
    if theirs is not None:
        made, instead = f"--pos {theirs}", f"train with --pos {theirs}, "
    raise ValueError(
        f"the checkpoint to start from, {path}, was trained with {made}, this training has "
        f"--pos {pos}: {instead}take its weights with --finetune-from-model and a new --save-dir, "
        f"or {ANOTHER_CHECKPOINT}"
    )


def finetunes(cfg: Any) -> bool:
    """Whether a training takes the weights alone of its checkpoint; ``cfg`` as in settle."""
    return _start_of((cfg._get_parent() or {}).get("checkpoint"))[1]


def settle(cfg: Any, name: str, measure: Callable[[str], Any]) -> None:
    """Set an option that was not given: from the checkpoint to start from, else by measuring.

    In training ``cfg``, the model's options, is a part of fairseq's whole config, so new
    checkpoints store the value. ``measure`` gets the name of the training set.
    """
    whole = cfg._get_parent() or {}
    split = (whole.get("dataset") or {}).get("train_subset", "train")
    path, _ = _start_of(whole.get("checkpoint"))
    value = (stored_options(path).get(name) if path else None) or measure(split)
    cfg[name] = value
    if name in (whole.get("model") or {}):
        # without a named architecture cfg is a copy, whose parent is still the whole config
        whole["model"][name] = value
    logger.info(f"{name}: {value}")


def _start_of(checkpoint: Any) -> tuple[str | None, bool]:
    """The checkpoint that fairseq-train will start from, and whether it takes only the weights."""
    path = getattr(checkpoint, "restore_file", None)
    weights_alone = False
    if path == "checkpoint_last.pt":  # fairseq's default, the only name that it looks for there
        path = f"{checkpoint.save_dir}/{path}"
        if not PathManager.exists(path):
            path = checkpoint.continue_once
            if path is None:
                path, weights_alone = checkpoint.finetune_from_model, True
    if path is None or not PathManager.exists(path):
        return None, False
    return path, weights_alone


def stored_options(path: str) -> dict[str, Any]:
    """The model's options in a checkpoint of fairseq."""
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    # older fairseq stored them as `args`
    options = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    if isinstance(options, Namespace):
        return vars(options)
    return plain_options(options) if OmegaConf.is_config(options) else dict(options)
