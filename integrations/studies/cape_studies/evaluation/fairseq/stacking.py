"""Long test sets: consecutive sentences joined into one, as in section 4.3 of the paper."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# 270 of newstest2014's 3003 pairs came out of this in the paper
MIN_TOKENS = 300

# quotes and brackets, also as the Moses tokeniser writes them (&quot;), before the first letter
_FIRST_LETTER = re.compile(r"((?:&#?\w+;|[^\w])*)(\w)(.*)", re.DOTALL)


class Stacks(NamedTuple):
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
    joined = [" ".join(sentence.split()) for sentence in sentences]
    joined[1:] = [lower_first_letter(sentence) for sentence in joined[1:]]
    joined[:-1] = [full_stop_to_comma(sentence) for sentence in joined[:-1]]
    return " ".join(joined)


def full_stop_to_comma(sentence: str) -> str:
    """The last word ``.`` or ``word.``; ``...``, ``U.S.`` and a stop before a quote stay."""
    last = sentence.rpartition(" ")[2]
    return f"{sentence[:-1]}," if last.endswith(".") and last.count(".") == 1 else sentence


def lower_first_letter(sentence: str) -> str:
    """The first letter, even if quotes come before it."""
    match = _FIRST_LETTER.fullmatch(sentence)
    return match[1] + match[2].lower() + match[3] if match else sentence


def stack(
    sources: Sequence[str],
    targets: Sequence[str],
    count: Callable[[str], int],
    min_tokens: int = MIN_TOKENS,
) -> Stacks:
    """Join pairs in their order until the target has enough tokens, and begin again.

    The sentences at the end that do not reach it are left off: the paper's test set has 300 tokens
    or more in each target. A sentence is never used twice.

    Args:
        sources, targets: sentences before BPE, line by line.
        count: tokens of a target after BPE, without EOS.
        min_tokens: tokens of a stacked target, at least; 300 in the paper.

    Raises:
        ValueError: unequal numbers of lines, an empty line, or too little text for one stack.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} source lines for {len(targets)} target lines")
    for side, lines in (("source", sources), ("target", targets)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise ValueError(f"{side} line {number} is empty: remove that pair")
    stacks, begin = Stacks([], [], 0), 0
    for end in range(1, len(targets) + 1):
        target = join(targets[begin:end])
        size = count(target)
        if size >= min_tokens:
            stacks.pairs.append((join(sources[begin:end]), target))
            stacks.tokens.append(size)
            begin = end
    if not stacks.pairs:
        raise ValueError(
            f"all {len(targets)} sentences together have fewer than {min_tokens} target tokens"
        )
    return stacks._replace(left_off=len(targets) - begin)
