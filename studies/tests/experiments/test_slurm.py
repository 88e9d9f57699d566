"""``cape-run --cluster slurm`` with an sbatch and a sacct that start jobs on this machine."""

import os
import re
import subprocess
import sys

import pytest
import yaml
from counting import STUDY, begins, count, runs, score

# The job is a copy of the script, as SLURM's is: submitit moves the script when sbatch has ended.
SBATCH = """#!/bin/sh
id=$$
cp "$1" "$FAKE/job$id"
SLURM_JOB_ID=$id SLURM_JOB_NODELIST=localhost setsid sh "$FAKE/job$id" > "$FAKE/out$id" 2>&1 &
echo $! > "$FAKE/new$id"
mv "$FAKE/new$id" "$FAKE/pid$id"  # sacct may be asked meanwhile, and reads no half of it
echo "Submitted batch job $id"
"""
SACCT = """#!/bin/sh
echo "JobID|State|NodeList"
for file in "$FAKE"/pid*; do
    kill -0 "$(cat "$file")" 2> /dev/null && state=RUNNING || state=COMPLETED
    echo "${file##*pid}|$state|localhost"
done
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with the jobs that were sent."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("sacct", SACCT), ("srun", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("FAKE", str(folder))
    return folder


def jobs(slurm):
    return sorted(slurm.glob("job*"))


def test_runs_are_jobs_with_what_was_asked_for_and_what_is_done_sends_none(
    cape_run, tmp_path, slurm
):
    asked = {"time": "120", "partition": "long", "cpus-per-task": "4"}
    words = ["--cluster", "slurm", *(f"--sbatch={name}={one}" for name, one in asked.items())]
    said = cape_run(*words)
    assert re.search(r"counting few seed 0: done \([12] of 2", said)
    assert [score(runs(tmp_path, name)[0]) for name in ("few", "many")] == ["3", "5"]
    sent = jobs(slurm)[0].read_text().splitlines()
    assert {f"#SBATCH --{name}={one}" for name, one in asked.items()} < set(sent)
    assert len(jobs(slurm)) == 2
    cape_run(*words)
    assert len(jobs(slurm)) == 2


def test_a_failure_of_a_job_is_told_with_its_reason(cape_run, slurm):
    options = {"steps": 3, "fail": True}
    words = ["--cluster", "slurm", "run=[few]"]
    said = cape_run(*words, fails="it does not work", options=options)
    assert "counting few seed 0: failed" in said


@pytest.mark.release
def test_a_job_that_still_runs_is_waited_for_and_does_not_stand_for_another_evaluation(
    cape_run, cape_report, tmp_path, slurm, monkeypatch
):
    monkeypatch.setenv("COUNT_GATE", str(tmp_path / "gate"))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "counting.yaml").write_text(yaml.safe_dump(STUDY))
    code = "from cape_studies.run import main; main()"
    words = ["--cluster", "slurm", "run=[few]", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", code, str(tmp_path / "first" / "counting.yaml"), *words]
    with subprocess.Popen(command) as first:
        while not [at for at in runs(tmp_path, "few") if (at / "train" / "count").exists()]:
            assert first.poll() is None
        first.kill()
    assert first.returncode < 0
    (tmp_path / "gate").touch()
    cape_run(*words[:3], evaluations=count(add=1))
    (folder,) = runs(tmp_path, "few")
    assert cape_report("run=[few]", evaluations=count(add=1)) == {("few", 0): "4.0"}
    assert begins(folder) == [0]
    assert len(jobs(slurm)) == 2  # the first, and one for the evaluation that it did not know


def test_what_others_start_from_is_done_before_they_are_sent(cape_run, tmp_path, slurm):
    start = {"options": {"start": "{after}", "steps": 2}}
    variants = {"two": {"after": "one", **start}, "one": {}}
    cape_run("--cluster", "slurm", variants=variants, report={})
    one, two = (runs(tmp_path, name)[0] for name in ("one", "two"))
    assert len(jobs(slurm)) == 2
    assert (two / "job").stat().st_mtime >= (one / "config.yaml").stat().st_mtime
