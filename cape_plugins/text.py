"""The one reader of text that a user hands over: transcripts, sentences, lists, YAML, CSV.

Text is UTF-8, with or without a byte order mark, with line ends of any kind. What is not is told
with its file and its place. Nothing but the standard library is imported.
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
    r"""A file's text; its line ends are ``\n``, and it has no byte order marks.

    A carriage return alone ends a line where the file has no line feed, as in old Mac files. Else
    it is a stray one, and becomes a space, as pairs of files would not be pairs any more.

    Args:
        path: of the file; one that ends in .gz is unpacked.
        strict: refuse what is no UTF-8. False is for logs of programs, which may end in half a
            letter: such bytes become U+FFFD, and NUL bytes stay.

    Raises:
        ValueError: the file cannot be read; it is UTF-16 or UTF-32, whatever ``strict`` says; it
            has NUL bytes, or is no UTF-8 (Latin-1, say): with the line and the byte.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:  # gzip's among them
        raise ValueError(f"{path} cannot be read: {error}") from error
    return decoded(content, str(path), strict=strict)


def decoded(content: bytes, name: str, *, strict: bool = True) -> str:
    """The text of a file's bytes: what :func:`read_text` gives.

    Args:
        content: of the file, all of it.
        name: of the file, for errors.
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
                f"{name} has a NUL byte ({_place(content, at)}), of {content.count(0)}: it is no "
                "text, or was cut off when it was written. Write it anew, or take them out"
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
    r"""The lines of a text file, without their ends; no line after the last line end.

    Lines end as in :func:`read_text` alone, not at what Python's ``splitlines`` takes for line ends
    besides (form feeds, U+0085, U+2028).

    Raises:
        ValueError: see :func:`read_text`.
    """
    text = read_text(path)
    return text.removesuffix("\n").split("\n") if text else []


def two_forms(texts: Iterable[str]) -> str:
    """What to tell of texts in which the same letters are written in two ways; empty if none are.

    ``é`` may be one character (NFC) or two, ``e`` and an accent (NFD). They look alike, and are
    two letters to every model: an alphabet is doubled, and half of the data teach each half.

    Args:
        texts: of the whole data set.
    """
    words = Counter(word for text in texts if not text.isascii() for word in text.split())
    if all(unicodedata.is_normalized("NFC", word) for word in words):
        return ""  # which has one way alone
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
    """A name in NFC, to look it up: file systems and programs write it in either form."""
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
    """UTF-16 without a mark, by where its NUL bytes are; empty if it is none.

    Its letters of ASCII, spaces and line ends have a NUL byte each, all on one side.
    """
    even, odd = content[::2].count(0), content[1::2].count(0)
    if len(content) % 2 or min(even, odd) * 50 > max(even, odd):
        return ""
    if max(even, odd) < 2 or max(even, odd) * 20 < len(content):  # one letter in ten at the least
        return ""
    return "UTF-16LE" if odd > even else "UTF-16BE"


def _other(name: str, encoding: str, why: str) -> ValueError:
    how = f"Write it as UTF-8: iconv -f {encoding} -t UTF-8"
    return ValueError(f"{name} is {encoding}, not UTF-8: {why}. {how}")


def _no_utf8(content: bytes, name: str, at: int) -> str:
    """What to tell of a byte that no UTF-8 has there."""
    byte, place = content[at], _place(content, at)
    if at and content[at - 1] >= 0x80:  # after half a letter
        likely = "it may be damaged, or of several encodings"
    elif byte < 0xA0:
        likely = f"in Windows-1252 it is {content[at : at + 1].decode('cp1252', 'replace')!r}"
    else:
        likely = f"in Latin-1 it is {chr(byte)!r}"
    encoding = "WINDOWS-1252" if byte < 0xA0 else "ISO-8859-1"
    return (
        f"{name} is not UTF-8: {place} is 0x{byte:02X}; {likely}. Write it as UTF-8, if it is "
        f"that: iconv -f {encoding} -t UTF-8"
    )


def _place(content: bytes, at: int) -> str:
    """Line and byte in it, both from 1 on."""
    before = content[:at].replace(b"\r\n", b"\n")
    if b"\n" not in content:
        before = before.replace(b"\r", b"\n")
    in_line = len(before) - before.rfind(b"\n")
    return f"line {before.count(10) + 1}, byte {in_line}"
