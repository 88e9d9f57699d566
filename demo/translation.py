"""fairseq's demo: spelled-out numbers from English to German, with sinusoids and with CAPE.

    python demo/translation.py --out demo-results [--quick]

A line is several numbers below 100 in a row: "forty five seven" → "fünfundvierzig sieben". The
models are trained by fairseq-train on up to 8 numbers, and translate up to 24 of them through
fairseq-generate.
"""

import argparse
import random
import re
import shutil
from pathlib import Path

from common import Report, Run, host_command, run_side_by_side
from num2words import num2words

LONGEST = 8  # numbers per line in training
TESTS = (4, 8, 10, 12, 16, 24)  # numbers per line
SEED = 1

# what the two variants share
TRAIN = {
    "arch": "cape_transformer_tiny",
    **{f"{side}-embed-dim": 128 for side in ("encoder", "decoder")},
    **{f"{side}-ffn-embed-dim": 256 for side in ("encoder", "decoder")},
    **{f"{side}-attention-heads": 4 for side in ("encoder", "decoder")},
    "dropout": 0,
    "criterion": "label_smoothed_cross_entropy",
    "optimizer": "adam",
    "adam-betas": "(0.9, 0.98)",
    "lr": 2e-3,
    "lr-scheduler": "polynomial_decay",
    "warmup-updates": 300,
    "max-tokens": 600,
    "seed": SEED,
}
SWITCHES = ("encoder-normalize-before", "decoder-normalize-before")
# variant → its own; a line of training holds up to 16 source and 24 target tokens; Δ lets the model
# see what lies beyond (the paper's Δ = 5 is for sentences whose lengths vary more)
VARIANTS = {
    "sinpos": {},
    "cape": {"max-global-shift": 15, "max-local-shift": 0.5, "max-global-scale": 1},
}


def main() -> None:
    """Make the data, train both variants at once, translate, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few updates: to see that it runs")
    options = parser.parse_args()
    updates, train_lines, test_lines = (30, 400, 4) if options.quick else (2500, 30_000, 50)

    work = options.out.resolve() / "work"
    shutil.rmtree(work / "translation", ignore_errors=True)
    work = work / "translation"
    work.mkdir(parents=True)
    data = prepare(work, train_lines, test_lines)

    print(f"translation: training {' and '.join(VARIANTS)}, {updates} updates each", flush=True)
    seconds = run_side_by_side(
        {v: train_command(data, work / v, v, updates) for v in VARIANTS},
        work / "train",
        show=["| train_inner |"],
    )
    print(f"translation: translating {len(TESTS) * test_lines} test lines", flush=True)
    run_side_by_side(
        {v: generate_command(data, work / v) for v in VARIANTS}, work / "generate", show=["BLEU"]
    )

    report = Report(
        host="fairseq",
        task="spelled-out numbers, English to German",
        condition="numbers per line",
        metric="numbers translated correctly, in their place (%)",
        higher_is_better=True,
        trained_on=[str(n) for n in TESTS if n <= LONGEST],
        settings={
            "trained on": f"1 to {LONGEST} numbers per line, {train_lines} lines",
            "tested on": f"{test_lines} lines per length, {' '.join(generate_options())}",
            "updates": updates,
            "train": TRAIN,
            "switches": SWITCHES,
            "cape": VARIANTS["cape"],
            "whole lines correct (%)": {},
        },
    )
    for variant in VARIANTS:
        lines = read_translations(work / "generate" / f"{variant}.log")
        report.runs.append(
            Run(
                variant=variant,
                seed=SEED,
                scores={str(n): 100 * mean(numbers_correct, lines[n]) for n in TESTS},
                train_seconds=round(seconds[variant], 1),
            )
        )
        report.settings["whole lines correct (%)"][variant] = {
            str(n): 100 * mean(line_correct, lines[n]) for n in TESTS
        }
    report.save(options.out)
    print(f"\n{report.table()}\n")


def prepare(work: Path, train_lines: int, test_lines: int) -> Path:
    """Write the corpus as text and binarise it with fairseq-preprocess; the folder of the latter.

    German numbers are split where they are composed, marked as BPE marks it: fünf@@ und@@ vierzig.
    """
    english = [num2words(n).replace("-", " ") for n in range(100)]
    german = [num2words(n, lang="de").replace("und", "@@ und@@ ") for n in range(100)]
    draw = random.Random(SEED)

    def write(name: str, lengths: list[int]) -> None:
        lines = [[draw.randrange(100) for _ in range(length)] for length in lengths]
        for language, words in (("en", english), ("de", german)):
            text = "".join(" ".join(words[n] for n in line) + "\n" for line in lines)
            (work / f"{name}.{language}").write_text(text, encoding="utf-8")

    write("train", [draw.randint(1, LONGEST) for _ in range(train_lines)])
    write("test", [length for length in TESTS for _ in range(test_lines)])
    command = host_command(
        "fairseq_cli.preprocess",
        *("--source-lang", "en", "--target-lang", "de", "--destdir", work / "bin"),
        *("--trainpref", work / "train", "--testpref", work / "test"),
    )
    run_side_by_side({"preprocess": command}, work, show=["sents"])
    return work / "bin"


def train_command(data: Path, folder: Path, variant: str, updates: int) -> list[str]:
    """The call of fairseq-train."""
    flags = {
        **TRAIN,
        "pos": variant,
        **VARIANTS[variant],
        "max-update": updates,
        "total-num-update": updates,
        "save-dir": folder,
        "log-format": "simple",
        "log-interval": max(1, updates // 10),
        "num-workers": 0,
    }
    switches = (*SWITCHES, "cpu", "disable-validation", "no-epoch-checkpoints")
    return host_command(
        "fairseq_cli.train",
        data,
        *(part for flag, value in flags.items() for part in (f"--{flag}", value)),
        *(f"--{switch}" for switch in (*switches, "no-save-optimizer-state")),
    )


def generate_options() -> list[str]:
    """How fairseq-generate searches.

    Greedily: a beam of n stops at its first n hypotheses, and these models are so sure of
    themselves that those may be bad ones (which costs both variants at the lengths of training).
    The multiple of 1 keeps the last, smaller batch.
    """
    search = ["--beam", "1", "--max-len-a", "3", "--max-len-b", "20"]
    return [*search, "--required-batch-size-multiple", "1"]


def generate_command(data: Path, folder: Path) -> list[str]:
    """The call of fairseq-generate."""
    return host_command(
        "fairseq_cli.generate",
        *(data, "--path", folder / "checkpoint_last.pt", "--cpu", "--post-process"),
        *("--max-tokens", 3000, *generate_options()),
    )


def read_translations(log: Path) -> dict[int, list[tuple[list[str], list[str]]]]:
    """Numbers per line → pairs of reference and translation, from fairseq-generate's output."""
    text = log.read_text(encoding="utf-8")
    references = dict(re.findall(r"^T-(\d+)\t(.*)$", text, flags=re.MULTILINE))
    translations = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", text, flags=re.MULTILINE))
    assert references, "fairseq-generate printed no references"
    lines: dict[int, list[tuple[list[str], list[str]]]] = {}
    for number, reference in references.items():
        pair = reference.split(), translations[number].split()
        lines.setdefault(len(pair[0]), []).append(pair)
    return lines


def mean(score, pairs: list[tuple[list[str], list[str]]]) -> float:
    """The mean score of pairs of reference and translation."""
    return sum(score(*pair) for pair in pairs) / len(pairs)


def numbers_correct(reference: list[str], translation: list[str]) -> float:
    """Part of the numbers that are right where they stand; numbers too many count as wrong."""
    right = sum(a == b for a, b in zip(reference, translation, strict=False))
    return right / max(len(reference), len(translation))


def line_correct(reference: list[str], translation: list[str]) -> float:
    """1 if all is right, else 0."""
    return float(reference == translation)


if __name__ == "__main__":
    main()
