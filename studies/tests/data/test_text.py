"""Text that a user hands over: UTF-8, with or without a mark, and what is said if it is not."""

import pytest

from cape_studies.data.text import read_lines, read_text


@pytest.mark.parametrize(
    "content",
    [
        b"one\ntwo\n",
        b"one\ntwo",
        b"\xef\xbb\xbfone\r\ntwo\r\n",
        b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n",  # two files of Windows, joined
    ],
)
def test_a_mark_and_the_line_ends_of_windows_are_no_text(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    assert read_lines(tmp_path / "a.txt") == ["one", "two"]


def test_what_is_a_line_end_to_some_programs_alone_ends_no_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\rb\u2028c\x85d\x0ce\nf\n", "utf-8", newline="")
    assert read_lines(path) == ["a\rb\u2028c\x85d\x0ce", "f"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("häuser\n".encode("utf-16"), r"a\.txt is not UTF-8: line 1 has the byte 0xFF"),
        ("hauser\n".encode("utf-16-le"), r"a\.txt has NUL bytes"),
        ("ab\r\nhä\r\n".encode("latin-1"), r"a\.txt is not UTF-8: line 2 has the byte 0xE4"),
    ],
)
def test_what_is_no_utf8_is_told_in_one_line_with_file_and_place(tmp_path, content, told):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        read_text(tmp_path / "a.txt")
