"""What our encoders do with weights that are not theirs.

ESPnet's recognition loads with ``strict=False``: without an error, missing weights would stay
random, and weights that nobody has would be dropped.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cape_plugins.added import Table
from cape_plugins.espnet.options import ESPNET_REL_POS
from cape_plugins.mark import RefusedCheckpoint, compare_first, variant_of
from cape_plugins.relpos import RelativePositions

# what ESPnet's relative attention has, and no other
_OF_REL_POS = (".linear_pos.weight", ".pos_bias_u", ".pos_bias_v")


def prepare_loading(encoder: Any) -> None:
    """What our encoders do last in their constructors."""
    compare_first(encoder)
    encoder.register_load_state_dict_pre_hook(_refuse_other_attention)
    if encoder.positions is not None:
        encoder.positions.mark.remedy = _remedy


def takes_another_hop(encoder: Any) -> None:
    """Let an encoder load weights of another ``frame_shift`` with a warning.

    For a model that knows its frontend's hop. A variant whose vectors are of frames, not of
    seconds, goes on to refuse them.
    """
    if encoder.positions is None:
        return
    variant = encoder.positions.variant
    kinds = [kind for kind in (variant.adds, variant.attends) if kind is not None]
    if not any(issubclass(kind, Table | RelativePositions) for kind in kinds):
        encoder.positions.mark.training_only |= {"frame_shift"}


def _remedy(option: str, trained: Any) -> str | None:
    if option != "frame_shift":
        return None
    return (
        f"give the frontend that hop and set encoder_conf frame_shift {trained:g} (model: cape_asr "
        "takes another hop, but for abspos and relpos, whose vectors are of frames)"
    )


def _refuse_other_attention(encoder: Any, weights: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Compare the attention, as weights of ESPnet's own encoders have no mark.

    Raises:
        RefusedCheckpoint: the weights have ESPnet's relative attention and the encoder has not, or
            the reverse. Weights of a part of the layers are not judged.
    """
    names = [name for name in weights if name.startswith(prefix)]
    found = [name for name in names if name.endswith(_OF_REL_POS)]
    if encoder.pos != ESPNET_REL_POS:
        if found:
            raise RefusedCheckpoint(
                f"the weights are of ESPnet's own relative positions ({found[0]}), this model has "
                f"encoder_conf pos {encoder.pos}: set encoder_conf pos {ESPNET_REL_POS}, or to "
                "train on from them give --init_param with --ignore_init_mismatch true"
            )
        return
    own = {prefix + name for name, _ in encoder.named_parameters() if ".linear_q." in name}
    if not found and own <= {*names}:
        trained = variant_of(names) or "of their training"
        raise RefusedCheckpoint(
            "the weights have no relative positions of ESPnet (linear_pos, pos_bias_u), this model "
            f"has encoder_conf pos {ESPNET_REL_POS}: set encoder_conf pos {trained}"
        )


def keep_config(task: Any) -> None:
    """Let ESPnet's training keep ``config.yaml`` where it refuses to resume.

    ESPnet writes that file before it loads the checkpoint, and recognition reads it.
    """
    theirs = task.main_worker.__func__
    if theirs.__module__ == __name__:
        return

    def main_worker(cls: Any, args: Any) -> None:
        config = Path(args.output_dir, "config.yaml")
        before = config.read_bytes() if args.resume and config.exists() else None
        try:
            theirs(cls, args)
        except RefusedCheckpoint:
            if before is not None:
                config.write_bytes(before)
            raise

    main_worker.__doc__ = theirs.__doc__
    task.main_worker = classmethod(main_worker)
