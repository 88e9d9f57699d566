"""Text that a user hands over: UTF-8 with or without a mark, and what it is told if it is not."""

import gzip
import subprocess
import sys
import unicodedata

import pytest

from cape_plugins.text import read_lines, read_text, two_forms

NFC, NFD = "Größe café", unicodedata.normalize("NFD", "Größe café")


@pytest.mark.parametrize(
    "content",
    [
        b"one\ntwo\n",
        b"one\ntwo",
        b"\xef\xbb\xbfone\r\ntwo\r\n",
        b"one\rtwo\r",
        b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n",  # two files of Windows, joined
    ],
)
def test_a_mark_and_line_ends_of_any_kind_are_no_text(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert read_lines(path) == ["one", "two"]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(content))
    assert read_lines(packed) == ["one", "two"]


def test_what_is_a_line_end_to_some_programs_alone_ends_no_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\rb\u2028c\x85d\x0ce\nf\n", "utf-8", newline="")
    assert read_lines(path) == ["a b\u2028c\x85d\x0ce", "f"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("häuser\nü\n".encode("utf-16"), r"a\.txt is UTF-16, not UTF-8: .*line 1, byte 1"),
        ("häuser ü\n".encode("utf-16-le"), r"a\.txt is UTF-16LE, .*line 1, byte 2"),
        ("häuser ü\n".encode("utf-16-be"), r"a\.txt is UTF-16BE, .*line 1, byte 1"),
        ("häuser\n".encode("utf-32"), r"a\.txt is UTF-32, not UTF-8"),
        ("ab\r\nhä\r\n".encode("latin-1"), r"a\.txt is not UTF-8: line 2, byte 2 .* Latin-1 it is"),
        ("ab\n„a“\n".encode("cp1252"), "line 2, byte 1 is 0x84; in Windows-1252 it is"),
        (b"ab\n\na\0b c d e f g\n", r"a\.txt has a NUL byte \(line 3, byte 2\)"),
    ],
)
def test_what_is_no_utf8_is_told_by_name_with_file_and_place(tmp_path, content, told):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=told):
        read_text(path)


def test_a_log_may_end_in_half_a_letter_and_not_be_utf16(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes("loss=1\nü".encode()[:-1])
    assert read_text(path, strict=False) == "loss=1\n�"
    path.write_text("loss=1\n", encoding="utf-16")
    with pytest.raises(ValueError, match="UTF-16"):
        read_text(path, strict=False)


def test_letters_in_two_forms_are_told_with_both_counts():
    told = two_forms([NFC, NFC, NFD])
    assert "4 letters" not in two_forms([NFC])
    assert "4 letters are in Unicode's composed form (NFC) and 2 are not (NFD)" in told
    assert "U+0065+U+0301 (1 times)" in told or "U+006F+U+0308 (1 times)" in told


@pytest.mark.parametrize("texts", [["plain"], [NFC, "cafe"], [NFD, "cafe"]])
def test_text_of_one_form_is_not_told(texts):
    assert two_forms(texts) == ""


@pytest.mark.parametrize("letter", ["한", "\u0958", "\u09cb"])  # no accents: parts of a letter
def test_letters_of_other_scripts_in_two_forms_are_told(letter):
    assert two_forms([letter, unicodedata.normalize("NFD", letter)])


def test_reading_text_imports_no_torch():
    code = "import sys, cape_plugins.text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
