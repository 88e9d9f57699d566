"""The model card of a run, for README.md of its export: model_card.md, filled."""

from datetime import timedelta
from pathlib import Path

import jinja2
import pandas as pd
import yaml

from cape_studies.experiments.study import Study, read_yaml


def model_card(run: Path, study: Study, license: str) -> str:
    """What cape-run noted about a finished run, with the header that model hubs read."""
    scores = pd.read_csv(run / "scores.csv", dtype={"condition": str})
    first, record = scores.iloc[0], read_yaml(run / "record.json")  # which JSON is
    scores["metric"] += scores["higher_is_better"].map({True: " ↑", False: " ↓"})
    scores["seen"] = scores["trained_on"].map({True: "seen", False: ""})
    shown = scores[["evaluation", "condition", "seen", "metric", "value", "items"]]
    noted = read_yaml(run / "settings.yaml")
    settings = {key: noted[key] for key in ("recipe", "options", "processes") if noted[key]}
    for name, step in study.prepare.items():
        program = step.module or Path(step.script or "").name  # its folder is this machine's
        settings[f"prepare {name}"] = {program: [*step.arguments, step.options]}
    template = jinja2.Template(
        Path(__file__).with_suffix(".md").read_text("utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return template.render(
        study=study,
        about=first,
        record=record,
        license=license,
        duration=timedelta(seconds=round(record["train"]["seconds"])),
        scores=shown.dropna(axis=1, how="all").to_markdown(index=False, floatfmt=".4g"),
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip(),
    )
