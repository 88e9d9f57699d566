"""What a preparation of a user's data leaves for the study's YAML: ``facts.yaml``."""

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_origin

import yaml
from pydantic import ValidationError, validate_call

from cape_studies.options import first_fault

Fact = str | int | float | list[int] | list[str]


def command(prepare: Callable[..., None]) -> None:
    """Call the function of a script with the command line, an option for each argument; ``--help``
    begins with its module's docstring. A fault ends the process with status 2 and a line on
    stderr."""
    parser = argparse.ArgumentParser(
        description=sys.modules[prepare.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=inspect.cleandoc(prepare.__doc__ or ""),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for name, one in inspect.signature(prepare).parameters.items():
        several = "*" if get_origin(one.annotation) in (list, tuple) else None
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, required=one.default is one.empty, nargs=several)
    given = vars(parser.parse_args())
    try:
        validate_call(prepare)(**given)
    except ValidationError as error:
        fault = first_fault(error)
    except (ValueError, ImportError, OSError) as error:
        fault = str(error)
    else:
        return
    print(f"error: {' '.join(fault.split())}", file=sys.stderr)
    sys.exit(2)


def write(out: Path, **facts: Fact) -> None:
    """Write ``out/facts.yaml``, which the study's YAML reads as ``${facts:NAME}``, and print the
    fact ``found``, a sentence on what the data hold."""
    text = yaml.safe_dump(facts, allow_unicode=True, sort_keys=False, width=100)
    (out / "facts.yaml").write_text(text, encoding="utf-8")
    print(facts["found"], flush=True)


def passes(number: float) -> str:
    """So many passes over the data, in words: ``about 8.33 epochs``, ``about 2,260 epochs``."""
    return f"about {number:{',.0f' if number >= 100 else '.3g'}} epochs"
