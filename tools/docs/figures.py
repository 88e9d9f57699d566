"""Draws docs/figures/NAME.png and fills the tables of published numbers in docs/evidence.md.

python tools/docs/figures.py

The left panel of a figure is of studies/results, the right one of docs/published.csv, where a row
is one number with its source and with what was seen of that. Each picture keeps a digest of the
numbers that it shows and of this script, by which a test finds one that is out of date.
"""

import hashlib
import math
import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cape_studies.figure import GREY, STYLE
from cape_studies.stats import Estimate

_tables = runpy.run_path(str(Path(__file__).with_name("tables.py")))
scores_of, by_words, table = (_tables[name] for name in ("scores_of", "by_words", "table"))
WORDS = _tables["LENGTHS"]  # of a caption's reference

DOCS = Path(__file__).parents[2] / "docs"
OUT = DOCS / "figures"
PAGE = DOCS / "evidence.md"
PUBLISHED = DOCS / "published.csv"
TICKS = [0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]
KEY = "Digest"  # in a picture's metadata
#: colours of no positions, a host's default, its best flag, ours, and another
NONE, DEFAULT, FLAG, OURS, OTHER = GREY, "C0", "C1", "C2", "C4"


class Line(NamedTuple):
    """Scores of a variant in the order of their conditions."""

    label: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Panel(NamedTuple):
    """Score against size or length.

    Attributes:
        names: of the places on the x-axis where these are no multiples of training's size; of a
            panel of dots, of the rows.
        dots: a row for each name, and the score along the x-axis.
    """

    title: str
    score: str
    size: str
    lines: list[Line]
    names: tuple[str, ...] = ()
    dots: bool = False


Found = Mapping[tuple[str, str], Estimate]  # variant, condition → score
Shown = Mapping[str, tuple[str, str]]  # variant → label, colour


def ours(found: Found, places: Mapping[str, float], shown: Shown) -> list[Line]:
    """Lines of our variants with their intervals; none of fewer than three trainings.

    Args:
        found: of ``Scores``.
        places: condition → how many times training's size, or the order.
        shown: which variants.
    """
    return [
        Line(
            label,
            colour,
            *zip(
                *((place, *found[variant, one][:3]) for one, place in places.items()),
                strict=True,
            ),
        )
        for variant, (label, colour) in shown.items()
    ]


def published(situation: str, left_out: str) -> pd.DataFrame:
    """Rows of PUBLISHED, numbers as text, but for those that are shown in ``left_out`` alone."""
    rows = pd.read_csv(PUBLISHED, dtype=str, keep_default_na=False)
    return rows[(rows["situation"] == situation) & (rows["shown"] != left_out)]


def theirs(situation: str, shown: Shown) -> list[Line]:
    """Lines of published variants against size, without intervals."""
    return [_theirs(situation, variant, *of, "ratio") for variant, of in shown.items()]


def theirs_by_test(situation: str, shown: Shown) -> tuple[list[Line], tuple[str, ...]]:
    """Dots of published variants, a row for each test; and the names of the tests."""
    names = tuple(published(situation, "table")["column"].unique())
    return [_theirs(situation, variant, *of, "column") for variant, of in shown.items()], names


def _theirs(situation: str, variant: str, label: str, colour: str, by: str) -> Line:
    rows = published(situation, "table")
    places = {name: float(i) for i, name in enumerate(rows["column"].unique())}
    rows = rows[rows["variant"] == variant]
    x = rows["column"].map(places) if by == "column" else rows["ratio"].astype(float)
    points = sorted(zip(x, rows["value"].astype(float), strict=True))
    nothing = (math.nan,) * len(points)
    return Line(label, colour, *zip(*points, strict=True), nothing, nothing)


def less(lines: Sequence[Line], label: str) -> list[Line]:
    """Each less the line of that label."""
    (base,) = (dict(zip(one.x, one.y, strict=True)) for one in lines if one.label == label)
    return [
        one._replace(y=tuple(y - base[x] for x, y in zip(one.x, one.y, strict=True)))
        for one in lines
    ]


DIGITS = {"1–2": 1 / 3, "3–6": 1.0, "8–12": 10 / 4.5, "16–24": 20 / 4.5, "30–40": 35 / 4.5}
SIDES = {str(side): side / 32 for side in (16, 24, 32, 48, 64, 96)}
TOKENS = {f"{length} all": length / 256 for length in (256, 512, 1024)}
SMALL = "ours: 3 layers of 64 channels"
LOSS = "loss, nats per token"
RECALL = "values recalled, %"
ERRORS = "word error rate, %"
TOP1 = "top-1, %"
NOTHING = {"nopos": ("no positions", NONE)}


def figures() -> dict[str, list[Panel]]:
    """Name of a picture → its panels."""
    return {
        "new_language_model": _new_language_model(),
        "longer_texts": _longer_texts(),
        "image_sizes": _image_sizes(),
        "image_weights": _image_weights(),
        "objects_elsewhere": [
            _shifted("digits", "digit_canvas_long", {"abspos": ("timm's default", DEFAULT)}),
            _shifted("CIFAR-10", "canvas_long", {}),
        ],
        "speech": _speech(),
        "long_recordings": _long_recordings(),
        "translation": _translation(),
    }


def _new_language_model() -> list[Panel]:
    shown = {
        **NOTHING,
        "rope": ("rotary", DEFAULT),
        "rope_yarn": ("rotary, YaRN", FLAG),
        "rope_nopos": ("some layers without", "C3"),
        "alibi_long": ("ALiBi, 3 times the updates", OTHER),
        "cape_rope": ("cape_rope", OURS),
    }
    known = {
        "no positions": ("no positions", NONE),
        "rotary": ("rotary", DEFAULT),
        "rotary, YaRN in the test": ("rotary, YaRN", FLAG),
        "ALiBi": ("ALiBi", OTHER),
        "rotary in windows, some layers without positions": ("some layers without", "C3"),
    }
    places = {"64": 1.0, "128": 2.0, "256": 4.0}
    lines = ours(scores_of("recall", "exact").found, places, shown)
    dots, names = theirs_by_test("new_lm", known)
    needles = tuple(name.replace("needles, ", "") for name in names)
    found = "needles found at 2 times training's length, %"
    return [
        Panel("ours: 2 layers of 128 channels", RECALL, "times training's 64 tokens", lines),
        Panel("published: 494 M parameters", found, "", dots, needles, dots=True),
    ]


def _longer_texts() -> list[Panel]:
    shown = {
        "rope": ("as it is", DEFAULT),
        "rope_dynamic": ("dynamic in the test", NONE),
        "rope_yarn": ("YaRN in the test", FLAG),
        "pose_yarn": ("PoSE with YaRN", OURS),
        "random_rope": ("random positions", OTHER),
    }
    known = {
        "as it is": ("as it is", DEFAULT),
        "trained on the full length": ("full length", NONE),
        "PoSE": ("PoSE", OURS),
        "random positions": ("random positions", OTHER),
    }
    lines = ours(scores_of("stdlib_code_long", "loss").found, TOKENS, shown)
    more = theirs("longer_lm", known)
    return [
        Panel(f"{SMALL}, from scratch", LOSS, "times training's 256 tokens", lines),
        Panel("published: LLaMA-7B, tuned", "perplexity", "times training's 2,048 tokens", more),
    ]


IMAGENET = {
    "a learned table": ("a learned table", DEFAULT),
    "rotary, axial": ("timm's rope", OTHER),
    "rotary, mixed": ("timm's rope_mixed", "C3"),
}


def _image_sizes() -> list[Panel]:
    shown = {
        **NOTHING,
        "abspos": ("timm's default", DEFAULT),
        "timm_rope": IMAGENET["rotary, axial"],
        "timm_rope_ref": ("… with ref_feat_shape", FLAG),
        "rope": ("ropepos", OURS),
        "timm_rope_mixed": IMAGENET["rotary, mixed"],
    }
    lines = ours(scores_of("cifar10_sizes", "sizes").found, SIDES, shown)
    side = "times training's side, {} pixels"
    return [
        Panel("ours: CIFAR-10, 64 channels, 4 epochs", TOP1, side.format(32), lines),
        Panel("published: ImageNet, ViT-S", TOP1, side.format(224), theirs("images", IMAGENET)),
    ]


def _image_weights() -> list[Panel]:
    shown = {
        "stock": ("timm's rope", OTHER),
        "augmented": ("timm's augmentation", FLAG),
        "cape": ("_cape twin", OURS),
        "moved": ("moved objects", "C3"),
    }
    places = {side: int(side) / 32 for side in ("24", "28", "32", "40", "48", "64", "96")}
    lines = ours(scores_of("backbones", "centre").found, places, shown)
    side = "times training's side, {} pixels"
    return [
        Panel("ours: fine-tuned, 64 channels", TOP1, side.format(32), lines),
        Panel("published: ImageNet, ViT-B", TOP1, side.format(224), theirs("weights", IMAGENET)),
    ]


def _shifted(data: str, study: str, default: Shown) -> Panel:
    scores = scores_of(study, "shift")
    shown = {
        **NOTHING,
        **default,
        "rope_gap": ("ropepos, no class token", FLAG),
        "cape_rope": ("cape_rope, Δ = 1", OURS),
        "rope_moved": ("ropepos, moved objects", OTHER),
    }
    places = {one: float(i) for i, one in enumerate(scores.conditions)}
    shift = "shift of the object, pixels"
    return Panel(f"ours: {data}", TOP1, shift, ours(scores.found, places, shown), tuple(places))


def _speech() -> list[Panel]:
    shown = {
        **NOTHING,
        "sinpos_sqrt": ("sinusoids", DEFAULT),
        "rel_pos": ("rel_pos", FLAG),
        "rope": ("rotary", OURS),
        "alibi_sqrt": ("ALiBi", OTHER),
    }
    known = {
        "no positions": ("no positions", NONE),
        "sinusoids": ("sinusoids", DEFAULT),
        "`rel_pos`": ("rel_pos", FLAG),
        "rotary": ("rotary", OURS),
    }
    trained = {one: place for one, place in DIGITS.items() if one != "1–2"}
    lines = ours(scores_of("digits_rope", "length").found, trained, shown)
    dots, names = theirs_by_test("speech", known)
    return [
        Panel("ours: Transformer, CTC, 128 channels", ERRORS, "times training's length", lines),
        Panel("published: CTC, 90 M and more", ERRORS, "", dots, names, dots=True),
    ]


def _long_recordings() -> list[Panel]:
    searches = {
        "length": ("search", DEFAULT),
        "ctc": ("CTC alone", FLAG),
        "unheard": ("search, unheard speaker", OTHER),
        "ctc_unheard": ("CTC, unheard speaker", OURS),
    }
    lines = [
        ours(scores_of("digits_conformer", test).found, DIGITS, {"rel_pos": label})[0]
        for test, label in searches.items()
    ]
    more = theirs("long_speech", {"CTC, rotary": ("CTC alone, rotary", OURS)})
    return [
        Panel("ours: Conformer with rel_pos", ERRORS, "times training's length", lines),
        Panel("published: 90 M parameters", ERRORS, "times training's 164 s", more),
    ]


def _translation() -> list[Panel]:
    shown = {
        **NOTHING,
        "sinpos_joined": ("sinusoids, joined pairs", DEFAULT),
        "relpos": ("relpos, context 150", FLAG),
        "random_rope": ("random_rope", OURS),
        "alibi": ("ALiBi", OTHER),
        "cape": ("cape", "C3"),
    }
    known = {
        "a learned table": ("a learned table", NONE),
        "sinusoids": ("sinusoids", DEFAULT),
        "relative positions": ("relative positions", FLAG),
        "CAPE": ("CAPE", "C3"),
    }
    places = {one: float(i) for i, one in enumerate(WORDS)}
    lines = ours(by_words("multi30k_longer_searched").differences, places, shown)
    dots, names = theirs_by_test("translation", known)
    more = "BLEU less that of sinusoids"
    words = "words of the reference; trained on 12 tokens at most"
    return [
        Panel("ours: captions to German", more, words, lines, tuple(places)),
        Panel("published: WMT'14", more, "", less(dots, "sinusoids"), names, dots=True),
    ]


def digest(panels: Sequence[Panel]) -> str:
    """Of what a picture shows, and of this script."""
    shown = [
        [
            panel._replace(lines=[]),
            *([line.label, line.colour, *_rounded(line)] for line in panel.lines),
        ]
        for panel in panels
    ]
    text = Path(__file__).read_text("utf-8") + repr(shown)
    return hashlib.sha256(text.encode()).hexdigest()


def _rounded(line: Line) -> list[list[float]]:
    return [[round(one, 3) for one in numbers] for numbers in line[2:]]


def draw(panels: Sequence[Panel], out: Path) -> None:
    """Draw the panels beside each other, to be read at a width of 700 pixels."""
    with matplotlib.rc_context({**STYLE, "font.size": 10, "axes.titlesize": 10}):
        picture = Figure(figsize=(8.0, 4.2), layout="constrained")
        for axis, panel in zip(picture.subplots(1, len(panels)), panels, strict=True):
            (_dots if panel.dots else _lines)(axis, panel)
            axis.set_title(panel.title, color=GREY)
            axis.grid(alpha=0.3)
            axis.legend(
                loc="upper center",
                bbox_to_anchor=(0.5, -0.18),
                ncols=2,
                fontsize=9,
                columnspacing=1,
                handlelength=1.5,
            )
        picture.savefig(out, dpi=130, transparent=True)
    about = PngInfo()
    about.add_text(KEY, digest(panels))
    with Image.open(out) as drawn:
        drawn.load()
    drawn.save(out, pnginfo=about, optimize=True)


def _lines(axis: Any, panel: Panel) -> None:
    for line, marker in zip(panel.lines, "osD^vP", strict=False):
        axis.plot(line.x, line.y, color=line.colour, marker=marker, ms=4, label=line.label)
        axis.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.15, lw=0)
    axis.set(xlabel=panel.size, ylabel=panel.score)
    places = sorted({one for line in panel.lines for one in line.x})
    if panel.names:
        axis.set_xticks(range(len(panel.names)), panel.names)
        return
    axis.axvline(1, color=GREY, alpha=0.25, lw=6, zorder=0)  # training's
    axis.set_xscale("log", base=2)
    few = places[-1] < 6.5 * places[0]
    ticks = [one for one in (TICKS if few else TICKS[::2]) if places[0] <= 1.1 * one]
    ticks = [one for one in ticks if one <= 1.1 * places[-1]]
    axis.set_xticks(ticks, [f"{one:g}" for one in ticks])
    axis.minorticks_off()
    axis.set_xlim(places[0] / 1.15, places[-1] * 1.15)


def _dots(axis: Any, panel: Panel) -> None:
    apart = 0.5 / max(1, len(panel.lines) - 1)
    for i, (line, marker) in enumerate(zip(panel.lines, "osD^vP", strict=False)):
        rows = [one + apart * i - 0.25 for one in line.x]
        axis.plot(line.y, rows, color=line.colour, marker=marker, ms=5, ls="", label=line.label)
    axis.set_yticks(range(len(panel.names)), [name.replace(", ", ",\n") for name in panel.names])
    axis.set_ylim(len(panel.names) - 0.5, -0.5)
    axis.set(xlabel=panel.score)


def of_table(situation: str) -> str:
    """The published numbers: a row for each variant, a column for each test, and their sources."""
    rows = published(situation, "figure")
    sources = [*rows["source"].unique()]
    heads = rows["column"] + [f" [{sources.index(one) + 1}]" for one in rows["source"]]
    cells = rows.assign(head=heads).pivot(index="variant", columns="head", values="value")
    cells = cells.fillna("").loc[rows["variant"].unique(), heads.unique()]
    lines = [[variant, *of] for variant, of in zip(cells.index, cells.to_numpy(), strict=True)]
    told = []
    for number, source in enumerate(sources, 1):
        one = rows[rows["source"] == source].iloc[0]
        told.append(
            f"[{number}] [{source}]({one['link']}): {one['model']}; trained on {one['trained']}. "
            f"Seen: {one['seen']}."
        )
    return table(["", *cells.columns], lines) + "\n" + "<br>\n".join(told) + "\n"


def page(text: str) -> str:
    """The page with its tables made anew."""
    return re.sub(
        r"<!-- published: (\w+) -->\n.*?<!-- /published -->",
        lambda of: f"<!-- published: {of[1]} -->\n{of_table(of[1])}<!-- /published -->",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name, panels in figures().items():
        draw(panels, OUT / f"{name}.png")
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
