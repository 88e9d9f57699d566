"""Checks of options before any data is read; an error is one line that says what is wrong."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq.dataclass import FairseqDataclass

from cape_plugins import variants
from cape_plugins.checks import is_number
from cape_plugins.fairseq.config import FURTHEST, TokenSettings

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
    scale = values.get("source_scale", 0.0)  # a language model has none
    if not (is_number(scale) and 0 <= scale <= FURTHEST):
        raise ValueError(
            f"source_scale must be > 0 and at most {FURTHEST:g}, or 0 to count it from the "
            f"training set, got {scale!r}"
        )
    for name, instead in _REPLACED.items():
        if values.get(name):
            raise ValueError(f"{flag(name)} is replaced by {instead} in cape_transformer models")
    variants.refuse_options(settings.pos, values, default, flag, axes=settings.axes)
    return settings


def flag(name: str) -> str:
    """An option's name as users type it."""
    return f"--{name.replace('_', '-')}"
