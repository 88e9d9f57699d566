"""What a preparation of a user's data leaves for the study's YAML: ``facts.yaml``."""

from pathlib import Path

import yaml

Fact = str | int | float | list[int] | list[str]


def write(out: Path, **facts: Fact) -> None:
    """Write ``out/facts.yaml``, which the study's YAML reads as ``${facts:NAME}``, and print the
    fact ``found``, a sentence on what the data hold."""
    text = yaml.safe_dump(facts, allow_unicode=True, sort_keys=False, width=100)
    (out / "facts.yaml").write_text(text, encoding="utf-8")
    print(facts["found"], flush=True)


def passes(number: float) -> str:
    """So many passes over the data, in words: ``about 8.33 epochs``, ``about 2,260 epochs``."""
    return f"about {number:{',.0f' if number >= 100 else '.3g'}} epochs"
