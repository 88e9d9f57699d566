"""tools/run_host_tests.py: what it counts as worse, and what it asks for."""

import runpy

import pytest

from cape_support import ROOT


def test_what_fails_with_ours_alone_is_worse_unless_it_is_refused(capsys, tmp_path):
    tool = runpy.run_path(str(ROOT / "tools" / "run_host_tests.py"))
    outcomes = {
        "a": "passed",
        "b": "skipped",
        "c": "ValueError: unknown option max_pos_emb_len",
        "d": "ValueError: unknown option nobody",
        "e": "AssertionError",  # fails with the host's own too
        "f": "raised\nValueError",
    }
    refused = {"max_pos": "its own", r"f.*\nValueError": "by design"}
    worse = tool["compare"](["a", "b", "c", "d", "f", "gone"], outcomes, refused, "alibi")
    assert worse == ["b: skipped", "d: ValueError: unknown option nobody", "gone: None"]
    told = capsys.readouterr().out
    assert "alibi: 1 of 6 pass" in told
    assert "1 refused: its own" in told
    for host in ("fairseq", "espnet", "transformers"):
        with pytest.raises(SystemExit, match=str(tmp_path)):
            tool["main"]([host, str(tmp_path)])
