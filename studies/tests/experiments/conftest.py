"""Runs the study of counting.py."""

import pytest
import yaml
from counting import STUDY

from cape_studies.experiments import plan, run, steps


@pytest.fixture
def cape_run(tmp_path, capsys, monkeypatch):
    """Writes the study and runs it; returns what was printed. The results are in tmp_path."""
    monkeypatch.setattr(steps, "SECONDS_TO_HEAR", 0.0)

    def call(*arguments, fails=None, **changes):
        for mark in (plan.data_mark, plan.script_mark, plan.code_mark):
            mark.cache_clear()
        (tmp_path / "counting.yaml").write_text(yaml.safe_dump({**STUDY, **changes}))
        words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), *arguments]
        if fails is None:
            run.main(words)
        else:
            with pytest.raises(SystemExit) as end:
                run.main(words)
            assert end.value.code == fails or fails in str(end.value.code)
        out, err = capsys.readouterr()
        return out + err

    return call
