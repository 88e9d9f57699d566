"""Encodings of the literature, written outside: fairseq's commands run all but one."""

import sys

import pytest

pytest.importorskip("fairseq")

from cape_plugins.fairseq.options import choose
from cape_support import EIGHT, ROOT, package_of_eight, run
from fairseq_support import TRAIN

SCRIPT = """
import sys
from fairseq_cli import generate, train

for pos in EIGHT:
    sys.argv = ["fairseq-train", DATA, *TRAIN.split(), "--max-update", "2", "--pos", pos]
    sys.argv += ["--save-dir", f"{OUT}/{pos}"]
    sys.argv += ["--pos-options", '{"fourier_wide": false}'] if pos == "fourier" else []
    try:
        train.cli_main()
    except SystemExit as ended:
        print("REFUSED", pos, ended.code)
        continue
    print("TRAINED", pos)
    sys.argv = ["fairseq-generate", DATA, "--path", f"{OUT}/{pos}/checkpoint_last.pt", "--cpu"]
    sys.argv += "--beam 2 --required-batch-size-multiple 1 --max-len-b 9".split()
    generate.cli_main()
    print("GENERATED", pos)
"""


def test_what_depends_on_content_is_refused_by_name(eight):
    for pos in EIGHT:
        if pos != "conditional":
            assert choose({"pos": pos}).pos == pos
    with pytest.raises(ValueError, match="--pos conditional adds what depends on the content"):
        choose({"pos": "conditional"})


@pytest.mark.release
def test_it_trains_and_translates_with_each_and_refuses_by_name_what_depends_on_content(
    data, tmp_path
):
    names = f"EIGHT, DATA, TRAIN, OUT = {EIGHT}, {str(data)!r}, {TRAIN!r}, {str(tmp_path)!r}"
    status, said = run(
        sys.executable, "-c", f"{names}\n{SCRIPT}", cwd=ROOT, **package_of_eight(tmp_path)
    )
    assert status == 0, said[-3000:]
    done = {word: set() for word in ("TRAINED", "GENERATED", "REFUSED")}
    for line in said.splitlines():
        if (words := line.split()) and words[0] in done:
            done[words[0]].add(words[1])
    assert done["TRAINED"] == done["GENERATED"] == {*EIGHT} - {"conditional"}
    assert done["REFUSED"] == {"conditional"}
    assert "error: --pos conditional adds what depends on the content" in said
    assert said.count("\nH-") == 10 * (len(EIGHT) - 1)
