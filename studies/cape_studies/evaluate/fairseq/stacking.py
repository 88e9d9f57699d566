"""Test sets of consecutive sentences joined into one, as in section 4.3 of the paper."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence

from fairseq.data.data_utils import infer_language_pair

from cape_studies.data.subwords import cutter
from cape_studies.data.text import read_lines, read_text, write_lines
from cape_studies.evaluate.fairseq.options import StackOptions

# quotes and brackets, also as the Moses tokeniser writes them (&quot;), before the first letter
_FIRST_LETTER = re.compile(r"((?:&#?\w+;|[^\w])*)(\w)(.*)", re.DOTALL)


def join(sentences: Sequence[str]) -> str:
    """Join several sentences into one.

    Full stops between them become commas, and the first letters after these become lower case,
    also in names, German nouns and "I".
    """
    joined = [" ".join(sentence.split()) for sentence in sentences]
    joined[1:] = [lower_first_letter(sentence) for sentence in joined[1:]]
    joined[:-1] = [full_stop_to_comma(sentence) for sentence in joined[:-1]]
    return " ".join(joined)


def full_stop_to_comma(sentence: str) -> str:
    """Replace a final ``.`` or ``word.``; ``...``, ``U.S.`` and a stop before a quote stay."""
    last = sentence.rpartition(" ")[2]
    return f"{sentence[:-1]}," if last.endswith(".") and last.count(".") == 1 else sentence


def lower_first_letter(sentence: str) -> str:
    """Lower the first letter, even if quotes come before it."""
    match = _FIRST_LETTER.fullmatch(sentence)
    return match[1] + match[2].lower() + match[3] if match else sentence


def stack(
    sources: Sequence[str], targets: Sequence[str], count: Callable[[str], int], min_tokens: int
) -> tuple[list[tuple[str, str]], list[int], int]:
    """Join consecutive pairs until the target has enough tokens, then begin the next stack.

    ``count`` gives the number of tokens of a target after BPE, without EOS. In the paper the
    minimum is 300, which makes 270 stacks of newstest2014's 3003 pairs.

    Returns:
        the joined pairs (source, target) before BPE; the number of tokens of each target after
        BPE; the number of sentences at the end that did not fill a stack.

    Raises:
        ValueError: the numbers of lines differ, or the text does not fill a stack.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} source lines for {len(targets)} target lines")
    pairs, tokens, begin = [], [], 0
    for end in range(1, len(targets) + 1):
        target = join(targets[begin:end])
        if (size := count(target)) >= min_tokens:
            pairs.append((join(sources[begin:end]), target))
            tokens.append(size)
            begin = end
    if not pairs:
        raise ValueError(f"all {len(targets)} sentences have fewer than {min_tokens} target tokens")
    return pairs, tokens, len(targets) - begin


def write(options: StackOptions) -> None:
    """Stack a test set, write it after BPE to ``stacked.LANG``, and binarise it.

    fairseq-preprocess binarises, and its log is shown.

    Raises:
        ValueError: a file is missing or does not fit, or the folder exists.
    """
    data, folder = options.data, options.out
    languages = [one for one in infer_language_pair(str(data)) if one] if data.is_dir() else []
    if len(languages) < 2:
        raise ValueError(f"{data} holds no binarised data")
    cut = cutter(read_text(options.codes))
    lines = read_lines(options.source), read_lines(options.target)
    pairs, tokens, left_off = stack(*lines, lambda text: len(cut(text).split()), options.min_tokens)
    if folder.exists():
        raise ValueError(f"{folder} exists: choose another name")
    folder.mkdir(parents=True)
    for language, side in zip(languages, zip(*pairs, strict=True), strict=True):
        write_lines(folder / f"stacked.{language}", map(cut, side))
    arguments = [
        *("--source-lang", languages[0], "--srcdict", data / f"dict.{languages[0]}.txt"),
        *("--target-lang", languages[1], "--tgtdict", data / f"dict.{languages[1]}.txt"),
        *("--testpref", folder / "stacked", "--destdir", folder),
    ]
    if subprocess.call([sys.executable, "-m", "fairseq_cli.preprocess", *map(str, arguments)]):
        raise ValueError("fairseq-preprocess failed: see above")
    print(
        f"{folder}: {len(lines[0])} sentences became {len(tokens)} of {min(tokens)} to "
        f"{max(tokens)} target tokens; {left_off} at the end were left off. If many tokens were "
        f"replaced by <unk> (see above), BPE codes or tokeniser are not those of {data}"
    )
