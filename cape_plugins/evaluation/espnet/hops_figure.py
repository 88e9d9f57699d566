"""Histogram of the hops that training without padding takes: how much time is stretched."""

# ruff: noqa: RUF009 - option() makes a field
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from cape_plugins.evaluation import command, figure
from cape_plugins.evaluation.options import option

_BAR = 0.5  # milliseconds


@dataclass(frozen=True, kw_only=True)
class HopOptions(figure.PictureOptions):
    """Hops of all utterances in the first pass of a training without padding."""

    csv: Sequence[Path] = option(
        "config.yaml of asr_train with iterator_type: task and frontend: cape_fbank; its shape "
        "files are looked for as asr_train did",
        metavar="CONFIG",
        flags=("csv",),
    )
    out: Path = option(".png, .pdf, .svg", Path("hops.png"))


def hops(config: Path) -> list[float]:
    """The hop in milliseconds of every utterance in a training's first pass.

    Raises:
        ImportError: ESPnet is missing.
        ValueError: the file is no config of such a training, or its shape files are not there.
    """
    from cape_plugins.espnet.batches import PerEpochBatches, read_durations
    from cape_plugins.espnet.frontend import CapeFbank

    try:
        given = yaml.safe_load(config.read_text(encoding="utf-8"))
        if (given["iterator_type"], given["frontend"]) != ("task", "cape_fbank"):
            raise ValueError("it has no iterator_type: task with frontend: cape_fbank")
        durations = read_durations(given["train_shape_file"])
        frontend = CapeFbank(**given["frontend_conf"])
        ranks = given.get("dist_world_size") or 1
        passes = PerEpochBatches(
            durations,
            given["batch_bins"],
            seed=given["seed"],
            ranks=ranks,
            min_batch_size=max(ranks, given["min_batch_size"]),
            max_ratio=frontend.max_duration_ratio,
        )
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else command.said(error, 3)
        raise ValueError(f"{config}: {why}: give config.yaml of asr_train's output") from error
    shares = [batch[rank::ranks] for batch in passes.batches(0) for rank in range(ranks)]
    found = [frontend.matched_hops([durations[key] for key in share]) for share in shares]
    return [1000 * samples / frontend.fs for share in found for samples in share]


def main(argv: Sequence[str] | None = None) -> None:
    """``python -m cape_plugins.plot hops``."""
    figure.main("python -m cape_plugins.plot hops", HopOptions, draw, argv)


def draw(options: HopOptions) -> None:
    """Draw a histogram for each training, named after its folder.

    Raises:
        ImportError: matplotlib or ESPnet is missing.
        ValueError: as :func:`hops`.
    """
    values = {config: hops(config) for config in options.csv}
    every = [hop for found in values.values() for hop in found]
    bars = range(round(min(every) / _BAR), round(max(every) / _BAR) + 2)  # 10 ms amid one
    edges = [_BAR * (bar - 0.5) for bar in bars]
    with figure.axes(options.out, "hop (ms)", "utterances (%)", [options.title]) as (axis,):
        for config, found in values.items():
            weights = [100 / len(found)] * len(found)
            name = config.resolve().parent.name
            axis.hist(found, edges, weights=weights, histtype="stepfilled", alpha=0.5, label=name)
