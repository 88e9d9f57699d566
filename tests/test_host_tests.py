"""tools/run_host_tests.py: what it counts as worse, and what it asks for."""

import runpy

import pytest

from cape_support import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "run_host_tests.py"))


def test_what_fails_with_ours_alone_is_worse_unless_it_is_refused(capsys):
    outcomes = {
        "a": "passed",
        "b": "skipped",
        "c": "ValueError: unknown option max_pos_emb_len",
        "d": "ValueError: unknown option nobody",
        "e": "AssertionError",  # fails with the host's own too
    }
    worse = TOOL["compare"](["a", "b", "c", "d", "gone"], outcomes, {"max_pos": "its own"}, "alibi")
    assert worse == ["b: skipped", "d: ValueError: unknown option nobody", "gone: None"]
    told = capsys.readouterr().out
    assert "alibi: 1 of 5 pass" in told
    assert "1 refused: its own" in told


def test_a_reason_is_found_on_any_line_of_an_error(capsys):
    refused = {r"test_x.*\nValueError": "by design"}
    assert not TOOL["compare"](["test_x"], {"test_x": "raised\nValueError"}, refused, "cape")


@pytest.mark.parametrize("host", ["fairseq", "espnet", "transformers"])
def test_a_folder_that_is_no_checkout_is_named(host, tmp_path):
    with pytest.raises(SystemExit, match=str(tmp_path)):
        TOOL["main"]([host, str(tmp_path)])
