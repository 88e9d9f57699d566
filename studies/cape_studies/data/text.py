"""Text of a line each: a user's, in UTF-8 with or without a byte order mark, and ours."""

import gzip
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

# quotes and brackets, also as the Moses tokeniser writes them (&quot;), before the first letter
FIRST_LETTER = re.compile(r"((?:&#?\w+;|[^\w])*)(\w)(.*)", re.DOTALL)
MARK = "\ufeff"  # files that were joined have it at the beginning of each


def read_text(path: str | Path) -> str:
    r"""The text of a file, which may end in .gz; line ends of Windows become ``\n``, and byte order
    marks are left out.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    try:
        content = Path(path).read_bytes()
        content = gzip.decompress(content) if Path(path).suffix == ".gz" else content
        text = content.decode().replace(MARK, "").replace("\r\n", "\n")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not UTF-8: line {line} has the byte 0x{content[error.start]:02X}. Write it "
            "as UTF-8: iconv -f ENCODING -t UTF-8"
        ) from error
    if "\0" in text:
        raise ValueError(f"{path} has NUL bytes: it is UTF-16, or no text. Write it as UTF-8")
    return text


def read_lines(path: str | Path) -> list[str]:
    r"""The lines of a text file, without their ends.

    Only ``\n`` ends a line: a stray carriage return, or another line end of ``splitlines``, would
    shift the lines of a parallel corpus against each other.

    Raises:
        ValueError: see :func:`read_text`.
    """
    text = read_text(path)
    return text.removesuffix("\n").split("\n") if text else []


def read_pairs(folder: Path, names: Sequence[str]) -> list[tuple[str, str]]:
    """The lines of two files side by side, with single spaces.

    Raises:
        ValueError: see :func:`read_text`; or the files have different numbers of lines.
    """
    one, two = (read_lines(folder / name) for name in names)
    if len(one) != len(two):
        raise ValueError(
            f"{folder} must have pairs of lines, but {' and '.join(names)} have {len(one)} and "
            f"{len(two)} lines"
        )
    return [(" ".join(a.split()), " ".join(b.split())) for a, b in zip(one, two, strict=True)]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    r"""Write lines, each with a ``\n``, in UTF-8."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


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
    match = FIRST_LETTER.fullmatch(sentence)
    return match[1] + match[2].lower() + match[3] if match else sentence
