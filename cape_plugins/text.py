"""Reads every text file that a user hands over: transcripts, sentences, lists, YAML, CSV.

Text must be UTF-8, with or without a byte order mark, with line ends of any kind. The error for
other files names the file and the place. Only the standard library is imported.
"""

import gzip
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

MARK = "\ufeff"  # the byte order mark; joined files have it at the beginning of each
#: UTF-32's first, as its little-endian mark begins with UTF-16's
_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32LE",
    b"\x00\x00\xfe\xff": "UTF-32BE",
    b"\xff\xfe": "UTF-16LE",
    b"\xfe\xff": "UTF-16BE",
}
_JAMO = "\u1160", "\u11ff"  # vowels and final consonants of Hangul, which continue a syllable


def read_text(path: str | Path, *, strict: bool = True) -> str:
    r"""Read a text file; line ends become ``\n``, and byte order marks are removed.

    In a file without line feeds (old Mac files) each carriage return ends a line. In other files a
    carriage return without a line feed becomes a space: as a line end it would shift the lines of a
    parallel corpus against each other.

    Args:
        path: the file; a name that ends in .gz is unpacked.
        strict: refuse bytes that are not UTF-8, and NUL bytes. With False, for logs of programs
            that may end in half a letter, such bytes become U+FFFD, and NUL bytes stay.

    Raises:
        ValueError: the file cannot be read, or is UTF-16 or UTF-32, whatever ``strict`` says. With
            ``strict`` also: it has NUL bytes, or is not UTF-8 (Latin-1, say). The message names
            the line and the byte.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:  # gzip's among them
        raise ValueError(f"{path} cannot be read: {error}") from error
    return decoded(content, str(path), strict=strict)


def decoded(content: bytes, name: str, *, strict: bool = True) -> str:
    """Decode a file's bytes as :func:`read_text` does.

    Args:
        content: all bytes of the file.
        name: the file's name, for errors.
        strict: see :func:`read_text`.

    Raises:
        ValueError: see :func:`read_text`.
    """
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            why = f"its first bytes (line 1, byte 1) are its mark, {mark.hex(' ').upper()}"
            raise _other(name, encoding.removesuffix("LE").removesuffix("BE"), why)
    if (at := content.find(b"\0")) >= 0:
        if encoding := _wide(content):
            why = f"every other byte is NUL, first {_place(content, at)}"
            raise _other(name, encoding, why)
        if strict:
            raise ValueError(
                f"{name} has a NUL byte ({_place(content, at)}), of {content.count(0)}: it is not "
                "text, or was cut off when it was written. Write it again, or remove the NUL bytes"
            )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if strict:
            raise ValueError(_no_utf8(content, name, error.start)) from error
        text = content.decode("utf-8", "replace")
    text = text.replace(MARK, "").replace("\r\n", "\n")
    return text.replace("\r", " " if "\n" in text else "\n")


def read_lines(path: str | Path) -> list[str]:
    r"""The lines of a text file, without their line ends.

    Only the line ends of :func:`read_text` count. The other line ends of Python's ``splitlines``
    (form feeds, U+0085, U+2028) stay inside a line.

    Raises:
        ValueError: see :func:`read_text`.
    """
    text = read_text(path)
    return text.removesuffix("\n").split("\n") if text else []


def two_forms(texts: Iterable[str]) -> str:
    """A warning if texts write letters both composed and decomposed; empty if they do not.

    ``é`` may be one character (NFC) or two, ``e`` and an accent (NFD). The two look alike, but a
    model sees two letters, and learns each from a part of the data.

    Args:
        texts: all texts of the data set.
    """
    words = Counter(word for text in texts if not text.isascii() for word in text.split())
    if all(unicodedata.is_normalized("NFC", word) for word in words):
        return ""  # NFC writes each letter in one way
    letters: Counter[str] = Counter()
    for word, times in words.items():
        for letter in [] if word.isascii() else _letters(word):
            letters[letter] += times
    ways: dict[str, Counter[str]] = defaultdict(Counter)
    for letter, times in letters.items():
        ways[unicodedata.normalize("NFC", letter)][letter] += times
    other = sum(times for letter, times in letters.items() if same(letter) != letter)
    composed = sum(
        each[letter]
        for letter, each in ways.items()
        if len(each) > 1 or not unicodedata.is_normalized("NFD", letter)
    )
    if not composed:
        return ""
    letter = max(ways, key=lambda one: sorted(ways[one].values(), reverse=True)[1:2])
    each_way = " and ".join(
        f"{'+'.join(f'U+{ord(character):04X}' for character in way)} ({times:,} times)"
        for way, times in ways[letter].most_common()
    )
    double = f": {letter} is {each_way}" if len(ways[letter]) > 1 else ""
    return (
        f"{composed:,} letters are in Unicode's composed form (NFC) and {other:,} are not (NFD), "
        f"which look alike and are different letters to a model{double}. Bring all text to one "
        "form: uconv -x nfc, or Python's unicodedata.normalize"
    )


def same(name: str) -> str:
    """A name in NFC, for look-ups: file systems and programs write names in NFC or NFD."""
    return unicodedata.normalize("NFC", name)


def _letters(word: str) -> list[str]:
    """Each character with the marks, or the rest of a Hangul syllable, that follow it."""
    found: list[str] = []
    for character in word:
        mark = unicodedata.category(character).startswith("M")
        if found and (mark or _JAMO[0] <= character <= _JAMO[1]):
            found[-1] += character
        else:
            found.append(character)
    return found


def _wide(content: bytes) -> str:
    """Recognise UTF-16 without a byte order mark; empty if the bytes are not UTF-16.

    Each ASCII letter, space and line end has one NUL byte, always at the same side.
    """
    even, odd = content[::2].count(0), content[1::2].count(0)
    if len(content) % 2 or min(even, odd) * 50 > max(even, odd):
        return ""
    if max(even, odd) < 2 or max(even, odd) * 20 < len(content):  # at least one letter in ten
        return ""
    return "UTF-16LE" if odd > even else "UTF-16BE"


def _other(name: str, encoding: str, why: str) -> ValueError:
    how = f"Write it as UTF-8: iconv -f {encoding} -t UTF-8"
    return ValueError(f"{name} is {encoding}, not UTF-8: {why}. {how}")


def _no_utf8(content: bytes, name: str, at: int) -> str:
    """The message for a byte that is not valid UTF-8 at its place."""
    byte, place = content[at], _place(content, at)
    if at and content[at - 1] >= 0x80:  # after half a letter
        likely = "it may be damaged, or mix several encodings"
    elif byte < 0xA0:
        likely = f"in Windows-1252 it is {content[at : at + 1].decode('cp1252', 'replace')!r}"
    else:
        likely = f"in Latin-1 it is {chr(byte)!r}"
    encoding = "WINDOWS-1252" if byte < 0xA0 else "ISO-8859-1"
    return (
        f"{name} is not UTF-8: {place} is 0x{byte:02X}; {likely}. If so, write it as "
        f"UTF-8: iconv -f {encoding} -t UTF-8"
    )


def _place(content: bytes, at: int) -> str:
    """The line, and the byte in that line, both counted from 1."""
    before = content[:at].replace(b"\r\n", b"\n")
    if b"\n" not in content:
        before = before.replace(b"\r", b"\n")
    in_line = len(before) - before.rfind(b"\n")
    return f"line {before.count(10) + 1}, byte {in_line}"
