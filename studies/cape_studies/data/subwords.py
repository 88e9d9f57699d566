"""Words by sacremoses, subwords by subword-nmt: one BPE for both languages."""

import io
from collections.abc import Callable, Iterable, Sequence

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Lines of a language after Moses' normaliser and tokeniser; case and XML's characters stay."""
    normal = MosesPunctNormalizer(lang=language).normalize
    tokens = MosesTokenizer(lang=language).tokenize
    return [tokens(normal(line), return_str=True, escape=False) for line in lines]


def learned(texts: Iterable[Sequence[str]], merges: int) -> str:
    """The codes of so many merges, learned on several texts together."""
    codes = io.StringIO()
    learn_bpe((line for text in texts for line in text), codes, merges)
    return codes.getvalue()


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
