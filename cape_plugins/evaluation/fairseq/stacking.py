"""Long test sets: consecutive sentences joined into one, as in section 4.3 of the paper."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# 270 of newstest2014's 3003 pairs came out of this in the paper
MIN_TOKENS = 300

# quotes and brackets, also as the Moses tokeniser writes them (&quot;), before the first letter
_FIRST_LETTER = re.compile(r"((?:&#?\w+;|[^\w])*)(\w)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Stacks:
    """Joined sentence pairs, before BPE.

    Attributes:
        pairs: (source, target).
        tokens: of each target after BPE.
        left_off: sentences at the end that did not make up a whole stack.
    """

    pairs: list[tuple[str, str]]
    tokens: list[int]
    left_off: int


def join(sentences: Sequence[str]) -> str:
    """Make one sentence of several.

    A full stop at the end of any but the last becomes a comma; the first letter of any but the
    first becomes lower case, whatever the word (names, German nouns and "I" too).
    """
    last = len(sentences) - 1
    joined = []
    for i, sentence in enumerate(sentences):
        sentence = " ".join(sentence.split())
        if i > 0:
            sentence = lower_first_letter(sentence)
        if i < last:
            sentence = full_stop_to_comma(sentence)
        joined.append(sentence)
    return " ".join(joined)


def full_stop_to_comma(sentence: str) -> str:
    """The last word ``.`` or ``word.``; ``...``, ``U.S.`` and a stop before a quote stay."""
    words = sentence.split(" ")
    if words[-1].endswith(".") and words[-1].count(".") == 1:
        words[-1] = words[-1][:-1] + ","
    return " ".join(words)


def lower_first_letter(sentence: str) -> str:
    """The first letter, even if quotes come before it."""
    match = _FIRST_LETTER.fullmatch(sentence)
    return match[1] + match[2].lower() + match[3] if match else sentence


def stack(
    sources: Sequence[str],
    targets: Sequence[str],
    count: Callable[[str], int],
    *,
    min_tokens: int = MIN_TOKENS,
    keep_remainder: bool = False,
) -> Stacks:
    """Join pairs in their order until the target has enough tokens, and begin again.

    The sentences at the end that do not reach it are left off by default: the paper's test set has
    300 tokens or more in each target. A sentence is never used twice.

    Args:
        sources, targets: sentences before BPE, line by line.
        count: tokens of a target after BPE, without EOS.
        min_tokens: tokens of a stacked target, at least; 300 in the paper.
        keep_remainder: keep the shorter rest at the end as the last pair.

    Raises:
        ValueError: unequal numbers of lines, an empty line, or too little text for one stack.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} source lines for {len(targets)} target lines")
    for side, lines in (("source", sources), ("target", targets)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise ValueError(f"{side} line {number} is empty: remove that pair")
    pairs, tokens = [], []
    begin = 0
    for end in range(1, len(targets) + 1):
        target = join(targets[begin:end])
        size = count(target)
        if size < min_tokens and not (keep_remainder and end == len(targets)):
            continue
        pairs.append((join(sources[begin:end]), target))
        tokens.append(size)
        begin = end
    if not pairs:
        raise ValueError(
            f"all {len(targets)} sentences together have fewer than {min_tokens} target tokens"
        )
    return Stacks(pairs, tokens, len(targets) - begin)
