"""A real host killed in the middle: fairseq-train on a corpus of a few hundred lines."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

pytestmark = pytest.mark.release
pytest.importorskip("fairseq")
pytest.importorskip("num2words")

UPDATES = 300
TINY = {
    "prepare": {"numbers": {"options": {"train": 300, "test": 2, "lengths": [2]}}},
    "options": {
        **{f"{side}-embed-dim": 16 for side in ("encoder", "decoder")},
        **{f"{side}-layers": 1 for side in ("encoder", "decoder")},
        "max-tokens": 200,
        "max-update": UPDATES,
        "total-num-update": UPDATES,
        "log-interval": 10,
    },
}


def cape_run(folder):
    """The study's first variant, in a session of its own."""
    content = yaml.safe_dump({"defaults": ["demo_fairseq", "_self_"], **TINY})
    (folder / "tiny.yaml").write_text(content)
    code = "from cape_studies.run import main; main()"
    words = [str(folder / "tiny.yaml"), "run=[cape]", "seeds=[1]"]
    words += ["--out", str(folder / "out")]
    return subprocess.Popen([sys.executable, "-c", code, *words], start_new_session=True)


def updates(folder):
    logs = list((folder / "out").glob("runs/cape-*/train.log"))
    text = logs[0].read_text() if logs else ""
    return [int(n) for n in re.findall(r"train_inner .*num_updates=(\d+)", text)], text


def test_fairseq_goes_on_after_kill_9(tmp_path):
    first = cape_run(tmp_path)
    end = time.monotonic() + 300
    while not list((tmp_path / "out").glob("runs/cape-*/train/checkpoint_last.pt")):
        assert time.monotonic() < end
        assert first.poll() is None
        time.sleep(0.2)
    listed = subprocess.run(["ps", "-s", str(first.pid), "-o", "pid="], stdout=subprocess.PIPE)
    for pid in listed.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    first.wait()
    before, _ = updates(tmp_path)
    assert before[-1] < UPDATES

    assert cape_run(tmp_path).wait() == 0
    after, text = updates(tmp_path)
    begun = after[len(before)]
    assert "Loaded checkpoint" in text
    assert 10 < begun <= before[-1] + 10  # not from the start
    assert after[-1] == UPDATES
    assert len([*(tmp_path / "out").glob("runs/cape-*/length-*/scores.csv")]) == 1
