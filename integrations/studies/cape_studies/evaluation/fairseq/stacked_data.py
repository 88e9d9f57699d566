"""A stacked test set as fairseq reads it: segmented text and a folder of binarised data."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from subword_nmt.apply_bpe import BPE

from cape_studies.evaluation.fairseq.options import StackOptions
from cape_studies.evaluation.fairseq.stacking import stack


def subword_nmt(codes: Path) -> Callable[[str], str]:
    """BPE with a codes file of subword-nmt.

    Raises:
        ValueError: the file is missing or is none.
    """
    try:
        with codes.open(encoding="utf-8") as file:
            bpe = BPE(file)
    except (OSError, UnicodeDecodeError, SystemExit, ValueError, IndexError) as error:
        # subword-nmt exits on a line that is no pair
        raise ValueError(f"{codes} is no codes file of subword-nmt: {error}") from error
    return lambda line: bpe.process_line(line).strip()


def write(options: StackOptions) -> None:
    """Stack a test set, segment it and binarise it with fairseq-preprocess.

    Args:
        options: the text before BPE, one sentence a line; the data with the dictionaries and the
            pair of languages; the folder to make, which gets ``test.*``, the dictionaries, and the
            text as ``stacked.LANG`` (before BPE) and ``stacked.bpe.LANG``.

    Raises:
        ValueError: a file is missing or does not fit, or the folder is there.
    """
    data, folder = options.data, options.out
    languages = [one for one in infer_language_pair(str(data)) if one] if data.is_dir() else []
    if len(languages) < 2:
        raise ValueError(f"{data} holds no binarised data")
    dictionaries = [data / f"dict.{language}.txt" for language in languages]
    if missing := [path for path in dictionaries if not path.is_file()]:
        raise ValueError(f"no dictionary {missing[0]}")
    cuts = [subword_nmt(codes) for codes in options.codes]
    lines = read_lines(options.source), read_lines(options.target)
    stacks = stack(*lines, lambda text: len(cuts[-1](text).split()), options.min_tokens)
    if folder.exists():
        if not options.overwrite:
            raise ValueError(f"{folder} exists: choose another name or give --overwrite")
        if not any(folder.glob("stacked.bpe.*")):
            raise ValueError(f"{folder} was not made by this command: remove it yourself")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    unknown = 0.0
    for side, (language, cut) in enumerate(zip(languages, (cuts[0], cuts[-1]), strict=True)):
        text = [pair[side] for pair in stacks.pairs]
        pieces = [cut(line) for line in text]
        for name, written in (("stacked", text), ("stacked.bpe", pieces)):
            content = "".join(f"{line}\n" for line in written)
            (folder / f"{name}.{language}").write_text(content, encoding="utf-8")
        known = Dictionary.load(str(dictionaries[side]))
        tokens = [known.index(token) for line in pieces for token in line.split()]
        unknown = tokens.count(known.unk()) / len(tokens)
    arguments = [
        *("--source-lang", languages[0], "--target-lang", languages[1]),
        *("--srcdict", dictionaries[0], "--tgtdict", dictionaries[1]),
        *("--testpref", folder / "stacked.bpe", "--destdir", folder),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_cli.preprocess", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError(f"fairseq-preprocess failed: {done.stderr.strip().splitlines()[-1]}")
    tokens = stacks.tokens
    print(
        f"{folder}: {len(lines[0])} sentences became {len(tokens)} of {min(tokens)} to "
        f"{max(tokens)} target tokens (mean {sum(tokens) / len(tokens):.1f}); {stacks.left_off} at "
        f"the end were left off; {100 * unknown:.2f} % unknown target tokens"
    )
    if unknown > 0.01:
        print(
            "warning: so many unknown tokens mean other BPE codes or another tokeniser than in "
            f"{data}",
            file=sys.stderr,
        )


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, split at newlines alone.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return text.removesuffix("\n").split("\n") if text else []
