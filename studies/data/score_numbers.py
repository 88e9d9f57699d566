"""How many numbers fairseq-generate translates right, in their places, by the length of the line.

    python studies/data/score_numbers.py --data numbers/bin --path checkpoint_last.pt \
        --csv scores.csv --items items.csv

Search is greedy. A beam of n stops at its first n hypotheses. These models are so sure of
themselves that these n may be bad ones. At the lengths of training that costs all variants.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Literal

from cape_studies.command import script
from cape_studies.evaluate.output import EvaluationOptions, Score, write


def main(
    data: Path, path: Path, csv: Path, items: Path, device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Translate, score, write.

    Args:
        data: from make_numbers.py, bin/.
        path: the checkpoint.
        csv: file to write, with condition, metric, value, items.
        items: file to write, with the score of each line.
        device: cpu or cuda.
    """
    words = [
        *(str(Path(sys.executable).parent / "fairseq-generate"), str(data)),
        *("--path", str(path), "--post-process", "--max-tokens", "3000", "--beam", "1"),
        *("--max-len-a", "3", "--max-len-b", "20", "--required-batch-size-multiple", "1"),
        *(["--cpu"] if device == "cpu" else []),
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    print(done.stdout)
    lines = defaultdict(list)
    for number, right, found in read(done.stdout):
        lines[len(right)].append((number, correct(right, found), 1))
    write(
        EvaluationOptions.model_validate({"csv": csv, "items": items, "overwrite": True}),
        (Score.of({"condition": n}, "numbers", "percent", lines[n]) for n in sorted(lines)),
    )


def read(text: str) -> list[tuple[int, list[str], list[str]]]:
    """Read fairseq-generate's output: each line's number, its reference and its translation."""
    references = dict(re.findall(r"^T-(\d+)\t(.*)$", text, flags=re.MULTILINE))
    found = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", text, flags=re.MULTILINE))
    if not references:
        sys.exit("fairseq-generate printed no references")
    return sorted((int(n), line.split(), found[n].split()) for n, line in references.items())


def correct(reference: list[str], translation: list[str]) -> float:
    """The share of numbers that are right in their places; surplus numbers count as wrong."""
    right = sum(a == b for a, b in zip(reference, translation, strict=False))
    return right / max(len(reference), len(translation))


if __name__ == "__main__":
    script(main)
