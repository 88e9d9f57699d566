"""cape-report on a small study folder, written here as cape-run writes it."""

import csv
import itertools
import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pydantic")
pytest.importorskip("jinja2")
stats = pytest.importorskip("scipy.stats")
yaml = pytest.importorskip("yaml")
pytest.importorskip("matplotlib")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cape_plugins.experiments import (  # noqa: E402
    report,
    report_figures,
    report_intervals,
    report_read,
)
from cape_plugins.experiments.report_intervals import Scores  # noqa: E402

SIZES = ("24", "32", "64")
STUDY = {
    "title": "A small study <of positions> & sizes",
    "host": "timm",
    "protocol": "Two variants, the same recipe. Expected: cape flatter beyond the trained size.",
    "cost": "a minute",
    "options": {"epochs": 2},
    "variants": {"cape": {}, "sinpos": {}, "nopos": {}},
    "seeds": [0, 1, 2],
    "evaluations": {"sizes": {"metrics": {"top1": "higher"}}},
    "report": {
        "baseline": "sinpos",
        "evaluation": "sizes",
        "metric": "top1",
        "x_label": "image side (pixels)",
        "y_label": "top-1 accuracy (%)",
        "title": "trained at 32²",
        "trained_on": ["32"],
        "paper": [
            {"condition": "64", "variant": "cape", "value": 75.5, "source": "Table 2"},
            {"condition": "64", "variant": "rope", "value": 1.0, "source": "Table 9"},
        ],
    },
}
RATES = {"cape": (0.6, 0.8, 0.75), "sinpos": (0.5, 0.8, 0.4), "nopos": (0.4, 0.7, 0.55)}


def write_run(folder: Path, variant: str, seed: int, images: int = 200, **settings) -> Path:
    """A run with items that make its scores."""
    run = folder / "runs" / f"{variant}-seed{seed}-{len(settings)}abcd"
    run.mkdir(parents=True)
    random = np.random.default_rng([seed, len(variant)])
    right = {c: random.random(images) < r for c, r in zip(SIZES, RATES[variant], strict=True)}
    scores, items = [], []
    for condition, hits in right.items():
        value = 100 * hits.mean()
        about = (folder.name, "timm", variant, seed, "sizes", condition, "top1")
        scores.append((*about, value, True, condition == "32", images))
        items += [(condition, "top1", f"{i}.png", int(hit), 1) for i, hit in enumerate(hits)]
    columns = ["condition", "metric", "item", "value", "weight"]
    pd.DataFrame(scores, columns=report_read.TIDY).to_csv(run / "scores.csv", index=False)
    pd.DataFrame(items, columns=columns).to_csv(run / "items-sizes.csv", index=False)
    steps = [(step, 0, "loss", 3 - 0.2 * step + 0.1 * seed) for step in range(1, 11)]
    curve = pd.DataFrame(steps, columns=["step", "epoch", "name", "value"])
    curve.to_csv(run / "metrics.csv", index=False)
    about = {"study": folder.name, "variant": variant, "seed": seed, "host": "timm"}
    about |= {"options": {"epochs": 2}, **settings}
    (run / "settings.yaml").write_text(yaml.safe_dump(about))
    record = {
        "git_commit": "0123abc",
        "versions": {"torch": "2.14.1", "timm": "1.0.31"},
        "machine": {"host": "here", "cores": 2},
        "device": "cpu",
        "train": {"command": ["train.py", "--model", f"vit_{variant}"], "seconds": 61.5},
        "evaluate-sizes": {"command": ["cape-timm-eval", "-c", "a b"], "seconds": 2.5},
    }
    (run / "record.json").write_text(json.dumps(record))
    return run


def write_study(folder: Path, seeds=(0, 1, 2), variants=tuple(RATES), **changes) -> Path:
    folder.mkdir(parents=True)
    runs = [write_run(folder, variant, seed).name for seed in seeds for variant in variants]
    study = {**STUDY, "runs": runs, **changes}
    (folder / "study.yaml").write_text(yaml.safe_dump(study, allow_unicode=True, sort_keys=False))
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three seeds of three variants."""
    return write_study(tmp_path / "small")


def scores_of(folder: Path, evaluation: str = "sizes", metric: str = "top1") -> Scores:
    return Scores(report_read.read([folder])[0], evaluation, metric)


def refused(capsys, *arguments: object) -> str:
    """The one line that the command ends with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        report.main([*map(str, arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    return line


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# --- intervals


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=6, unique=True))
def test_the_interval_over_seeds_is_students(values):
    found = report_intervals.over_seeds(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-6, abs=1e-6)
    assert found.seeds == len(values)


def test_equal_seeds_have_an_interval_without_width():
    assert report_intervals.over_seeds([3.0, 3.0, 3.0]) == (3.0, 3.0, 3.0, 3, None)


@pytest.mark.parametrize(("n", "rate"), [(400, 0.5), (1000, 0.9)])
def test_the_bootstrap_of_an_accuracy_is_as_wide_as_the_binomials(n, rate):
    hits = (np.arange(n) < rate * n).astype(float)
    parts = np.stack([hits, np.ones(n)], axis=1)
    score = report_intervals.scorer(parts, 100 * rate, "here")
    found = report_intervals.over_items(100 * rate, parts, score)
    half = 100 * 1.96 * math.sqrt(rate * (1 - rate) / n)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    assert (found.low + found.high) / 2 == pytest.approx(100 * rate, abs=half / 5)


def test_the_bootstrap_of_a_ratio_weighs_the_items():
    random = np.random.default_rng(0)
    words = random.integers(1, 30, 500).astype(float)
    errors = random.binomial(words.astype(int), 0.2).astype(float)
    parts = np.stack([errors, words], axis=1)
    wer = 100 * errors.sum() / words.sum()
    found = report_intervals.over_items(wer, parts, report_intervals.scorer(parts, wer, ""))
    # the delta method's standard error of a ratio of sums
    spread = 100 * math.sqrt(500 * np.var(errors - wer / 100 * words)) / words.sum()
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert found.low < wer < found.high


def test_the_bootstrap_of_bleu_is_that_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu.metrics")
    random = np.random.default_rng(1)
    references = [" ".join(random.choice(list("abcdefgh"), 12)) for _ in range(80)]
    hypotheses = [" ".join(np.where(random.random(12) < 0.9, r.split(), "x")) for r in references]
    metric = sacrebleu.BLEU(effective_order=True)
    each = [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]
    parts = np.array([[e.sys_len, e.ref_len, *e.counts, *e.totals] for e in each], dtype=float)
    theirs = sacrebleu.BLEU().corpus_score(hypotheses, [references], n_bootstrap=1000)
    score = report_intervals.scorer(parts, theirs.score, "here")
    found = report_intervals.over_items(theirs.score, parts, score)
    mean, half = theirs._mean, theirs._ci
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=0.2 * half)


def test_scores_and_differences_are_over_the_seeds_that_both_have(folder):
    shutil.rmtree(next((folder / "runs").glob("nopos-seed2-*")))
    replace_in(folder / "study.yaml", "- nopos-seed2-0abcd\n", "")
    scores = scores_of(folder)
    by_seed = {v: scores._values[v, "64"] for v in RATES}
    cape, sinpos, nopos = (list(by_seed[v].values()) for v in RATES)
    assert (len(cape), len(nopos)) == (3, 2)
    assert scores.found["cape", "64"] == report_intervals.over_seeds(cape)
    found = scores.differences["cape", "64"]
    expected = stats.ttest_rel(cape, sinpos).confidence_interval(0.95)
    assert found[1:4] == pytest.approx((*expected, 3))
    found = scores.differences["nopos", "64"]
    assert (found.value, found.seeds) == (pytest.approx(np.mean(nopos) - np.mean(sinpos[:2])), 2)
    assert ("sinpos", "64") not in scores.differences


def test_with_one_seed_test_items_give_the_interval_of_scores_and_of_pairs(tmp_path):
    folder = write_study(tmp_path / "one", seeds=[0])
    # nopos gets the very answers of sinpos, but for ten images
    theirs = pd.read_csv(folder / "runs" / "sinpos-seed0-0abcd" / "items-sizes.csv")
    mine, ten = theirs.copy(), theirs.index[(theirs["condition"] == 64)][:10]
    mine.loc[ten, "value"] = 1 - mine.loc[ten, "value"]
    nopos = folder / "runs" / "nopos-seed0-0abcd"
    mine.to_csv(nopos / "items-sizes.csv", index=False)
    rows = pd.read_csv(nopos / "scores.csv")
    rows["value"] = 100 * mine.groupby("condition", sort=False)["value"].mean().to_numpy()
    rows.to_csv(nopos / "scores.csv", index=False)

    scores = scores_of(folder)
    for variant in RATES:
        found = scores.found[variant, "64"]
        assert found.seeds == 1
        assert found.low < found.value < found.high
        assert found.high - found.low == pytest.approx(13, abs=2)  # 200 images
    # pairs: what both have alike is no uncertainty
    assert scores.differences["nopos", "32"][:3] == (0, 0, 0)
    assert 0 < scores.differences["nopos", "64"].high - scores.differences["nopos", "64"].low < 7
    assert scores.differences["cape", "64"].low > 0


def test_with_two_seeds_test_items_give_the_interval_of_their_mean(tmp_path):
    folder = write_study(tmp_path / "two", seeds=[0, 1])
    found = scores_of(folder).found["cape", "64"]
    runs = [next((folder / "runs").glob(f"cape-seed{seed}-*")) for seed in (0, 1)]
    items = [pd.read_csv(run / "items-sizes.csv").query("condition == 64") for run in runs]
    images = np.mean([one["value"] for one in items], axis=0)  # right in none, one or both
    half = 100 * 1.96 * images.std() / math.sqrt(len(images))
    assert found.seeds == 2
    assert found.value == pytest.approx(100 * images.mean())
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    report.main([str(folder)])
    text = (folder / "report" / "table.md").read_text()
    assert "Brackets: 95 % interval of two seeds over test items by a bootstrap" in text


def test_a_difference_of_three_seeds_has_an_interval_over_test_items_too(folder):
    scores = scores_of(folder)
    assert scores.found["cape", "64"].items is None
    found = scores.differences["cape", "64"]
    images = np.zeros(200)
    for seed, (variant, sign) in itertools.product(range(3), [("cape", 1), ("sinpos", -1)]):
        items = folder / "runs" / f"{variant}-seed{seed}-0abcd" / "items-sizes.csv"
        images += sign / 3 * pd.read_csv(items).query("condition == 64")["value"].to_numpy()
    low, high = found.items
    assert found.value == pytest.approx(100 * images.mean())
    assert high - low == pytest.approx(2 * 196 * images.std() / math.sqrt(200), rel=0.1)
    report.main([str(folder)])
    text = (folder / "report" / "table.md").read_text()
    assert f"({low:+.2f}, {high:+.2f})" in text.replace("−", "-")
    assert "Parentheses: the same over test items, of the mean of the seeds." in text


def test_another_variant_may_be_the_baseline_and_an_unknown_one_is_refused(folder, capsys):
    report.main([str(folder), "--baseline", "cape"])
    text = (folder / "report" / "table.md").read_text()
    assert "difference from cape" in text
    assert "difference from sinpos" not in text
    with pytest.raises(SystemExit):
        report.main([str(folder), "--baseline", "rope"])
    assert "--baseline: no 'rope'; there is cape, nopos, sinpos" in capsys.readouterr().err


def test_without_the_same_items_there_is_a_difference_without_an_interval(tmp_path):
    folder = write_study(tmp_path / "one", seeds=[0])
    replace_in(folder / "runs" / "cape-seed0-0abcd" / "items-sizes.csv", "7.png", "x.png")
    (folder / "runs" / "nopos-seed0-0abcd" / "items-sizes.csv").unlink()
    scores = scores_of(folder)
    assert scores.found["cape", "24"].known
    assert not scores.differences["cape", "24"].known
    assert not scores.found["nopos", "24"].known
    report.main([str(folder)])
    text = (folder / "report" / "table.md").read_text()
    assert "No brackets: fewer than 3 seeds, without (the same) test items." in text


# --- what is written


def test_the_table_has_intervals_bold_arrows_and_the_paper(folder):
    report.main([str(folder)])
    text = (folder / "report" / "table.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    scores = scores_of(folder)
    cape = next(line for line in lines if line and line[0] == "cape")
    value, low, high, *_ = scores.found["cape", "32"]
    assert cape[1] == "3"
    assert cape[3] == f"**{value:.2f} [{low:.2f}, {high:.2f}]**"
    assert "**" not in cape[2] + cape[4]
    assert "### sizes, top1 ↑\n" in text
    assert "Brackets: 95 % interval over seeds by Student's t." in text
    paper = [line for line in lines if line and line[-1] == "Table 2"]
    ours = scores.found["cape", "64"].value
    assert [row[3:5] for row in paper] == [["75.5", f"{ours - 75.5:+.2f}".replace("-", "−")]]
    assert "Table 9" not in text  # of a variant that was not run


def test_the_csv_has_every_row_of_every_study(folder, tmp_path):
    other = write_study(tmp_path / "other", seeds=[5])
    report.main([str(folder), str(other), "--out", str(tmp_path / "out")])
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == report_read.TIDY
    told = {(row["study"], row["variant"], row["seed"], row["condition"]) for row in rows}
    assert len(told) == len(rows) == (3 + 1) * len(RATES) * len(SIZES)
    assert {row["seed"] for row in rows if row["study"] == "other"} == {"5"}
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"figure-small.png", "figure-other.png"}
    assert files == {"scores.csv", "table.md", "index.html", *pictures}


def test_a_folder_of_studies_stands_for_all_of_them(folder, tmp_path):
    write_study(tmp_path / "other", seeds=[5])
    assert [one.name for one in report_read.read([tmp_path])] == ["other", "small"]


def test_runs_that_are_not_done_or_not_the_studys_are_named(folder):
    (folder / "runs" / "cape-seed1-0abcd" / "scores.csv").unlink()
    write_run(folder, "cape", 3, learning_rate=2)
    report.main([str(folder)])
    text = (folder / "report" / "table.md").read_text()
    assert "Not finished: cape-seed1-0abcd." in text
    assert "Left out, as the study has other settings now: cape-seed3-1abcd." in text
    assert len(scores_of(folder)._values["cape", "32"]) == 2


def test_a_report_is_made_anew_and_other_files_are_not_replaced(folder, tmp_path, capsys):
    report.main([str(folder)])
    report.main([str(folder)])
    (tmp_path / "table.md").write_text("mine")
    line = refused(capsys, folder, "--out", tmp_path)
    assert f"{tmp_path}/table.md exists: choose another --out or give --overwrite" in line
    assert (tmp_path / "table.md").read_text() == "mine"
    assert not (tmp_path / "index.html").exists()
    report.main([str(folder), "--out", str(tmp_path), "--overwrite"])
    assert "sizes, top1" in (tmp_path / "table.md").read_text()


# --- refusals


def test_folders_that_are_none_of_cape_run_are_refused(folder, tmp_path, capsys):
    assert f"no such folder: {tmp_path}/no" in refused(capsys, tmp_path / "no")
    (tmp_path / "empty").mkdir()
    assert "empty was not written by cape-run: there is no" in refused(capsys, tmp_path / "empty")
    for path in folder.glob("runs/*/scores.csv"):
        path.unlink()
    assert "small has no scores yet: cape-run small makes" in refused(capsys, folder)
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("seed", "settings", "said"),
    [(3, {"options": {"epochs": 9}}, "(options)"), (0, {"x": 1}, "(x)"), (0, {}, "(seed)")],
)
def test_runs_of_other_settings_do_not_pass_for_seeds(folder, capsys, seed, settings, said):
    replace_in(folder / "study.yaml", "runs:\n", "runs:\n- cape-other\n")
    made = write_run(folder.parent / "elsewhere", "cape", seed, **settings)
    shutil.move(made, folder / "runs" / "cape-other")
    line = refused(capsys, folder)
    assert "are not two seeds of one training" in line
    assert f"{said}: move one of them away" in line
    assert "cape-other and cape-seed0-0abcd" in line


def test_two_values_of_one_score_are_refused(folder, capsys):
    path = folder / "runs" / "cape-seed1-0abcd" / "scores.csv"
    replace_in(path, ",sizes,24,", ",sizes,32,")
    assert "small: sizes has several top1 of cape 32 1" in refused(capsys, folder)


def test_items_that_do_not_make_the_score_are_refused(tmp_path, capsys):
    folder = write_study(tmp_path / "one", seeds=[0])
    path = folder / "runs" / "cape-seed0-0abcd" / "items-sizes.csv"
    pd.read_csv(path).iloc[20:].to_csv(path, index=False)
    line = refused(capsys, folder)
    assert "cape-seed0-0abcd/items-sizes.csv, top1 of '24': the items make" in line


def test_what_cape_run_did_not_write_is_refused(folder, capsys):
    path = folder / "runs" / "cape-seed1-0abcd" / "scores.csv"
    replace_in(path, "higher_is_better", "better")
    assert "it has no column 'higher_is_better'" in refused(capsys, folder)
    path.write_text("")
    assert f"{path} cannot be read" in refused(capsys, folder)


def test_two_folders_of_one_name_or_without_out_are_refused(folder, tmp_path, capsys):
    other = write_study(tmp_path / "deeper" / "small", seeds=[0])
    assert "2 folders: give --out DIR" in refused(capsys, folder, other)
    assert "2 folders of a study 'small'" in refused(capsys, folder, other, "--out", tmp_path / "o")
    assert "twice" in refused(capsys, folder, folder, "--out", tmp_path / "o")


# --- the page


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Of two studies."""
    root = tmp_path_factory.mktemp("page")
    write_study(root / "small")
    write_study(root / "one", seeds=[0])
    report.main([str(root), "--out", str(root / "report")])
    return root / "report" / "index.html"


def chromium(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium: apt install chromium")
    quiet = ("--disable-quic", "--no-first-run", "--disable-background-networking")
    quiet += ("--disable-component-update", "--disable-sync", "--disable-gpu", "--no-sandbox")
    command = [program, "--headless", *quiet, f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_the_page_stands_alone(page):
    text = page.read_text()
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    sources = [part.split('"')[1] for part in text.split("src")[1:] if part[:1] in ("=", "s")]
    assert sources
    assert all(one.startswith("data:image/png;base64,") for one in sources if one != "none")


def test_a_browser_shows_the_page_without_an_error(page, tmp_path):
    done = chromium(page, tmp_path, "--dump-dom")
    for line in done.stderr.splitlines():
        assert "CONSOLE" not in line
        assert "Content Security Policy" not in line
    dom = done.stdout
    for text in (
        "A small study &lt;of positions&gt; &amp; sizes",
        "Expected: cape flatter beyond the trained size.",
        "sizes, top1 ↑, difference from sinpos",
        "Brackets: 95 % interval of one seed over test items by a bootstrap",
        "Table 2",
        "torch 2.14.1, timm 1.0.31",
        "train.py --model vit_cape",
        "cape-timm-eval -c 'a b'",
        "epochs: 2",
    ):
        assert text in dom, text
    assert dom.count("<strong>") == 2 * (3 + 2)  # the column 32 of scores and of differences
    assert dom.rstrip().endswith("</html>")


def test_no_two_of_forty_variants_are_drawn_alike():
    assert len({report_figures._of_variant(index) for index in range(40)}) == 40


@pytest.mark.parametrize(("scheme", "light"), [("0", False), ("1", True)])
def test_the_page_is_drawn_in_light_and_dark(page, tmp_path, scheme, light):
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "page.png"
    scheme = f"--blink-settings=preferredColorScheme={scheme}"
    chromium(page, tmp_path, f"--screenshot={file}", "--window-size=1000,1400", scheme)
    with image.open(file) as picture:
        pixels = np.asarray(picture.convert("L"), dtype=float)
    assert (pixels.mean() > 128) == light
    figure = pixels[420:800]  # lines, bands and grey: many shades
    assert len(np.unique(figure)) > 40
