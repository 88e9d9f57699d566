"""The model card of a run, for README.md of its export: model_card.md, filled."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from cape_studies.config import read_yaml

#: columns of an evaluation's CSV that are the same in all cards
LEFT_OUT = "model", "checkpoint", "how", "weight", "precision"


def model_card(run: Path, config: Mapping[str, Any], license: str) -> str:
    """What cape-run noted about a finished run, with the header that model hubs read."""
    tests = {}
    for path in sorted(run.glob("*/scores.csv")):
        rows = pd.read_csv(path).drop(columns=[*LEFT_OUT], errors="ignore")
        name = read_yaml(path.parent / "config.yaml")["name"]
        tests[name] = rows.dropna(axis=1, how="all").to_markdown(index=False, floatfmt=".4g")
    settings = {key: config[key] for key in ("recipe", "options", "processes") if config.get(key)}
    settings |= {f"prepare {name}": about for name, about in config["prepared"].items()}
    shown = str(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)).strip()
    for name, folder in config["data"].items():  # where it lies here is nobody's business
        shown = shown.replace(folder, f"{{{name}}}")
    template = jinja2.Template(
        Path(__file__).with_suffix(".md").read_text("utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return template.render(
        config=config,
        trained=config["trained"][-1],
        license=license,
        duration=timedelta(seconds=round(read_yaml(run / "trained.yaml")["seconds"])),
        tests=tests,
        settings=shown,
    )
