"""Parallel text for fairseq: words by sacremoses, subwords by subword-nmt, binary files."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fairseq import options
from fairseq_cli import preprocess
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

Lines = dict[tuple[str, str], list[str]]  # (part, language) → lines


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Lines of a language after Moses' normaliser and tokeniser; case and XML's characters stay."""
    normal = MosesPunctNormalizer(lang=language).normalize
    tokens = MosesTokenizer(lang=language).tokenize
    return [tokens(normal(line), return_str=True, escape=False) for line in lines]


def cut(parts: Lines, merges: int) -> tuple[Lines, str]:
    """All parts in subwords, and the codes: so many merges, which are learned on all languages of
    ``train`` together."""
    codes = io.StringIO()
    learn_bpe((x for (part, _), of in parts.items() if part == "train" for x in of), codes, merges)
    bpe = cutter(codes.getvalue())
    return {part: [bpe(line) for line in lines] for part, lines in parts.items()}, codes.getvalue()


def cutter(codes: str) -> Callable[[str], str]:
    """A line → its subwords, split with ``@@``.

    Raises:
        ValueError: the codes are not subword-nmt's.
    """
    try:
        bpe = BPE(io.StringIO(codes))
    except (SystemExit, IndexError) as error:  # subword-nmt exits at a line that is no pair
        raise ValueError(f"no codes of subword-nmt: {error}") from error
    return lambda line: bpe.process_line(line).strip()


def binarise(out: Path, languages: Sequence[str], *more: str) -> None:
    """Let fairseq-preprocess, with more of its options, write binary files to ``out``."""
    own = [f"--source-lang={languages[0]}", f"--target-lang={languages[1]}", f"--destdir={out}"]
    preprocess.main(options.get_preprocessing_parser().parse_args([*own, *more]))
