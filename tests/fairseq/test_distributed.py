"""Several processes, accumulated updates and half precision, through fairseq-train."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cape_support import BIN, environment
from fairseq_support import TRAIN

# fairseq-train that writes a line for each forward of a side: of each sentence the position of its
# first token (Δ + ε) and the distance to its second
SPY = """
import sys
from fairseq_cli.train import cli_main
from cape_plugins import Positions

path, augment = sys.argv.pop(1), Positions.augment

def spy(*args, **kwargs):
    positions = augment(*args, **kwargs)
    first, second = positions[..., 0].sort(dim=1).values[:, :2].unbind(1)  # NaN comes last
    with open(path, "a") as file:
        print(*(f"{x:.6f}" for x in [*first.tolist(), *(second - first).tolist()]), file=file)
    return positions

Positions.augment = spy
cli_main()
"""


def start_two(data, folder, flags, programs):
    """Two processes that train together, on CPUs."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    flags = f"""
        {data} {TRAIN} {flags} --save-dir {folder} --distributed-world-size 2
        --distributed-init-method tcp://localhost:{port} --distributed-no-spawn
        --distributed-backend gloo --ddp-backend legacy_ddp --distributed-rank
    """
    return [
        subprocess.Popen(
            [BIN / program[0], *program[1:], *flags.split(), str(rank)],
            env=environment(CUDA_VISIBLE_DEVICES=""),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, program in enumerate(programs)
    ]


def wait_for(ranks):
    for rank in ranks:
        output, _ = rank.communicate()
        assert rank.returncode == 0, output[-3000:]


@pytest.mark.release
def test_each_process_shifts_by_draws_of_its_own_the_same_after_resuming(data, tmp_path):
    def train(folder, updates):
        """What each of two processes wrote: lines of numbers, two for an update."""
        files = [tmp_path / f"{folder}{rank}.txt" for rank in range(2)]
        programs = [(Path(sys.executable).name, "-c", SPY, file) for file in files]
        flags = f"--batch-size 1 --max-update {updates} --disable-validation"
        flags += " --load-checkpoint-on-all-dp-ranks"
        wait_for(start_two(data, tmp_path / folder, flags, programs))
        return [file.read_text().splitlines() for file in files]

    once = train("once", 4)
    assert [len(lines) for lines in once] == [8, 8]
    first, second = (" ".join(lines).split() for lines in once)
    assert set(first) & set(second) == set()
    assert len(set(first)) == len(first)  # Δ + ε and ε are new in each update and on each side
    train("twice", 2)
    assert train("twice", 4) == once
