"""Stacked test sets, on captions of Multi30k's test set of 2016, tokenised by sacremoses."""

import runpy
import sys

import pytest

from cape_studies.data import text
from lab_support import SCRIPTS, script

pytest.importorskip("fairseq")
cutter = pytest.importorskip("cape_studies.data.subwords").cutter
stack = script("stack_sentences.py").stack

ENGLISH = [
    "A man in an orange hat starring at something .",
    "A Boston Terrier is running on lush green grass in front of a white fence .",
    "A girl in karate uniform breaking a stick with a front kick .",
    "Five people wearing winter jackets and helmets stand in the snow , with snowmobiles in the "
    "background .",
    "People are fixing the roof of a house .",
]
GERMAN = [
    "Ein Mann mit einem orangefarbenen Hut , der etwas anstarrt .",
    "Ein Boston Terrier läuft über saftig-grünes Gras vor einem weißen Zaun .",
    "Ein Mädchen in einem Karateanzug bricht ein Brett mit einem Tritt .",
    "Fünf Leute in Winterjacken und mit Helmen stehen im Schnee mit Schneemobilen im Hintergrund .",
    "Leute Reparieren das Dach eines Hauses .",
]


def words(line):
    return len(line.split())


def test_sentences_are_stacked_in_order_until_the_target_is_long_enough():
    pairs, tokens, left_off = stack(ENGLISH, GERMAN, words, min_tokens=20)
    assert tokens == [words(target) for _, target in pairs] == [23, 27]
    assert pairs[0] == (text.join(ENGLISH[:2]), text.join(GERMAN[:2]))
    assert pairs[1] == (text.join(ENGLISH[2:4]), text.join(GERMAN[2:4]))
    assert left_off == 1


def test_tokens_are_counted_after_bpe_of_the_changed_text():
    seen = []

    def count(line):
        seen.append(line)
        return len(line)

    stack(ENGLISH[:2], GERMAN[:2], count, min_tokens=100)
    assert seen == [GERMAN[0], text.join(GERMAN[:2])]


@pytest.mark.parametrize(
    ("change", "sentence", "changed"),
    [
        ("full_stop_to_comma", "a dog .", "a dog ,"),
        ("full_stop_to_comma", "a dog.", "a dog,"),  # not tokenised
        ("full_stop_to_comma", "really ?", "really ?"),
        ("full_stop_to_comma", "wait ...", "wait ..."),
        ("full_stop_to_comma", "in the U.S.", "in the U.S."),
        ("full_stop_to_comma", "he said : &quot; go . &quot;", "he said : &quot; go . &quot;"),
        ("full_stop_to_comma", "no stop", "no stop"),
        ("full_stop_to_comma", ".", ","),
        ("lower_first_letter", "Über den Zaun", "über den Zaun"),
        ("lower_first_letter", "&quot; Halt &quot; sagt er", "&quot; halt &quot; sagt er"),
        ("lower_first_letter", "( Ein Hund )", "( ein Hund )"),
        ("lower_first_letter", "3 Hunde", "3 Hunde"),
        ("lower_first_letter", "BMX-Fahrer", "bMX-Fahrer"),
        ("lower_first_letter", "...", "..."),
    ],
)
def test_only_a_final_full_stop_and_the_first_letter_change(change, sentence, changed):
    assert getattr(text, change)(sentence) == changed


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch, capsys):
    names = ("source", "target", "codes", "data", "out")
    given = [word for name in names for word in (f"--{name}", str(tmp_path))]
    monkeypatch.setattr(sys, "argv", ["stack", *given])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPTS / "stack_sentences.py"), run_name="__main__")
    assert "holds no binarised data" in capsys.readouterr().err
    with pytest.raises(ValueError, match="5 source lines for 4 target lines"):
        stack(ENGLISH, GERMAN[:4], words, 300)
    with pytest.raises(ValueError, match="all 5 sentences have fewer than 300"):
        stack(ENGLISH, GERMAN, words, 300)


def test_lines_end_at_newlines_alone(tmp_path):
    (tmp_path / "text").write_text("one\u2028line\nanother\n", encoding="utf-8")
    assert text.read_lines(tmp_path / "text") == ["one\u2028line", "another"]
