"""A test set of consecutive sentences joined into one, as in section 4.3 of the paper.

    python studies/data/stack_sentences.py --source tokenised/test.en --target tokenised/test.de \\
        --codes codes --data data-bin --out stacked

The text is tokenised, before BPE. fairseq-preprocess writes the subset test to --out, binarised
with the dictionaries of --data; its log is shown. --out gets the text after BPE too, stacked.LANG.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq.data.data_utils import infer_language_pair

from cape_studies.command import script
from cape_studies.data.subwords import binarise, cutter
from cape_studies.data.text import join, read_lines, read_text, write_lines


def main(
    source: Path, target: Path, codes: Path, data: Path, out: Path, min_tokens: int = 300
) -> None:
    """Stack, cut into subwords, binarise.

    Args:
        source: text of the source.
        target: text of the target.
        codes: of subword-nmt, for both languages.
        data: binarised data of the training.
        out: folder to make.
        min_tokens: least number of tokens of a target, without EOS; the paper has 300.

    Raises:
        ValueError: a file is missing or does not fit, or the folder exists.
    """
    languages = [one for one in infer_language_pair(str(data)) if one] if data.is_dir() else []
    if len(languages) < 2:
        raise ValueError(f"{data} holds no binarised data")
    cut = cutter(read_text(codes))
    lines = read_lines(source), read_lines(target)
    pairs, tokens, left_off = stack(*lines, lambda text: len(cut(text).split()), min_tokens)
    if out.exists():
        raise ValueError(f"{out} exists: choose another name")
    out.mkdir(parents=True)
    told = [f"--testpref={out / 'stacked'}"]
    sides = zip(("src", "tgt"), languages, zip(*pairs, strict=True), strict=True)
    for short, language, side in sides:
        write_lines(out / f"stacked.{language}", map(cut, side))
        told.append(f"--{short}dict={data / f'dict.{language}.txt'}")
    binarise(out, languages, *told)
    print(
        f"{out}: {len(lines[0])} sentences became {len(tokens)} of {min(tokens)} to {max(tokens)} "
        f"target tokens; {left_off} at the end were left off. If many tokens were replaced by "
        f"<unk> (see above), BPE codes or tokeniser are not those of {data}"
    )


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


if __name__ == "__main__":
    script(main)
