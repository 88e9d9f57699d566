"""Checks of options before any data is read; an error is one line that says what is wrong."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from cape_plugins import variants
from cape_plugins.checks import check_count, is_number
from cape_plugins.fairseq.config import FURTHEST, TokenSettings, start_of, stored_options
from cape_plugins.fairseq.radam import RADAM, check_radam

ANOTHER_CHECKPOINT = "give another --save-dir, --restore-file or --finetune-from-model"

# fairseq's own switches of positions, which would contradict --pos
_REPLACED = {
    "no_token_positional_embeddings": "--pos nopos",
    "encoder_learned_pos": "--pos abspos",
    "decoder_learned_pos": "--pos abspos",
}


@contextmanager
def one_line() -> Iterator[None]:
    """End fairseq's commands at a ValueError as argparse does: one line, exit status 2.

    In other programs, which build a model in Python, the ValueError is raised as usual.
    """
    program = Path(sys.argv[0])
    try:
        yield
    except ValueError as error:
        if not (program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"):
            raise
        print(f"{program.name}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


@one_line()
def check_training(
    model: Mapping[str, Any],
    checkpoint: Any,
    optimizer: Mapping[str, Any],
    defaults: FairseqDataclass,
) -> None:
    """Check all options of a training, before it reads data.

    Args:
        model: the model's options, as in :func:`check_options`.
        checkpoint: has fairseq's checkpoint options as attributes.
        optimizer: the optimizer's options, with its name as ``_name``.
        defaults: as in :func:`check_options`.

    Raises:
        ValueError: an option is wrong; or the checkpoint to start from has another ``pos`` or
            another architecture, or is not a checkpoint.
    """
    pos = check_options(model, defaults).pos
    if optimizer.get("_name") == RADAM:
        check_radam(optimizer)
    path, finetunes = start_of(checkpoint)
    options = stored_options(path)
    if path is not None and "pos" not in options and not finetunes:
        other = options.get("arch") or options.get("_name") or "another architecture"
        raise ValueError(
            f"the checkpoint to start from, {path}, is of {other}, this training is of a "
            f"cape_transformer with --pos {pos}: {ANOTHER_CHECKPOINT}. --finetune-from-model, "
            "with a new --save-dir, takes the weights of a Transformer of the same sizes"
        )
    theirs = options.get("pos", pos)
    if theirs != pos:  # fairseq would hide the error that loading the weights raises
        raise ValueError(
            f"the checkpoint to start from was trained with --pos {theirs}, this training has "
            f"--pos {pos}: train with --pos {theirs}, or {ANOTHER_CHECKPOINT}"
        )


@one_line()
def refuse_torchrun_alone(world_size: int | None) -> None:
    """Raise ValueError if torchrun started several processes that fairseq would not connect.

    ``world_size`` is fairseq's option; its default is the number of GPUs, at least 1.
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and started != "1" and world_size == 1:
        raise ValueError(
            f"torchrun started {started} processes, but --distributed-world-size is 1, so that "
            "each would train on its own into the same folder: give --distributed-world-size "
            f"{started} on GPUs; on CPUs start processes as in integrations/fairseq/README.md"
        )


@one_line()
def refuse_other_task(task: type, *, translates: bool) -> None:
    """Raise ValueError for a task that only the other of our two models can do."""
    if issubclass(task, LanguageModelingTask if translates else TranslationTask):
        arch = "cape_transformer_lm" if translates else "cape_transformer"
        raise ValueError(f"{task.__name__} is for --arch {arch}: give that, or another --task")


def check_options(options: Mapping[str, Any], defaults: FairseqDataclass) -> TokenSettings:
    """Check the options that our models add or restrict; returns those about positions.

    Args:
        options: name → value. An absent option has its default, and a default counts as not given.
        defaults: a config of the model; only options that it has are checked.

    Raises:
        ValueError: a value is out of range, is for another ``pos``, or contradicts another option.
    """
    default = vars(defaults)
    values = {**default, **{k: v for k, v in options.items() if k in default and v is not None}}
    settings = TokenSettings.of(values)
    _check_attention(settings, values)
    _check_admin(values)
    scale = values.get("source_scale", 0.0)  # a language model has none
    if not (is_number(scale) and 0 <= scale <= FURTHEST):
        raise ValueError(
            f"source_scale must be > 0 and at most {FURTHEST:g}, or 0 to count it from the "
            f"training set, got {scale!r}"
        )
    for name in ("max_source_positions", "max_target_positions"):
        if isinstance(values.get(name), int):  # of a language model it may be left to the task
            check_count(f"{flag(name)}, in tokens,", values[name])
    for name, instead in _REPLACED.items():
        if values.get(name):
            raise ValueError(f"{flag(name)} is replaced by {instead} in cape_transformer models")
    variants.refuse_options(settings.pos, values, default, flag, axes=settings.axes)
    return settings


def _check_attention(settings: TokenSettings, values: Mapping[str, Any]) -> None:
    given = f"--pos {settings.pos}"
    given += f" --attention-logn {settings.attention_logn}" if settings.attention_logn else ""
    for side in ("encoder", "decoder"):
        if f"{side}_embed_dim" not in values:  # a language model has no encoder
            continue
        dim, heads = (values[f"{side}_{size}"] for size in ("embed_dim", "attention_heads"))
        sizes = f"--{side}-embed-dim {dim} and --{side}-attention-heads {heads}"
        if heads < 1 or dim < 1 or dim % heads:
            raise ValueError(f"{sizes}: heads must be ≥ 1, and divide the channels")
        try:
            with torch.device("meta"):
                settings.embedding(dim, max_length=1)
                (ours,) = settings.attention_layers(1, settings.attention_settings(dim, heads))
        except ValueError as error:
            raise ValueError(f"{given} with {sizes}: {error}") from None
        for name in ("cross_self_attention", f"{side}_xformers_att_config"):
            if ours is not None and values.get(name):
                raise ValueError(
                    f"{flag(name)} does not go with {given}, which attends in a way of its own: "
                    "leave out one of the two"
                )


def _check_admin(values: Mapping[str, Any]) -> None:
    if values["admin_scales"] and not values["admin_init"]:
        raise ValueError("--admin-scales are for --admin-init: give both, or neither")
    for name in ("encoder_normalize_before", "decoder_normalize_before"):
        if values["admin_init"] and values.get(name):
            raise ValueError(
                f"--admin-init is for post-norm models, {flag(name)} makes this one pre-norm: "
                "leave out one of the two"
            )


def flag(name: str) -> str:
    """An option's name as users type it."""
    return f"--{name.replace('_', '-')}"
