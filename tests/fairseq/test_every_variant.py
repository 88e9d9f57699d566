"""Each variant of the table trains for a few real steps by fairseq's own command."""

import subprocess
import sys

import pytest
import torch

pytest.importorskip("fairseq")

from cape_plugins.variants import names

# what fairseq-train runs, for one variant after the other: importing takes longer than training
COMMAND = """
import sys
from fairseq_cli.train import cli_main

variants, folder, *arguments = sys.argv[1:]
for pos in variants.split():
    sys.argv = ["fairseq-train", *arguments, "--pos", pos, "--save-dir", f"{folder}/{pos}"]
    cli_main()
"""


def test_each_trains_and_is_validated(data, tmp_path):
    arguments = (
        *(data, "--arch", "cape_transformer_tiny", "--cpu", "--optimizer", "adam", "--lr", 0.005),
        *("--batch-size", 5, "--max-update", 4, "--num-workers", 0, "--no-epoch-checkpoints"),
        *("--log-format", "json", "--seed", 3),
    )
    command = [sys.executable, "-c", COMMAND, " ".join(names(1)), tmp_path, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for pos in names(1):
        state = torch.load(tmp_path / pos / "checkpoint_last.pt", weights_only=True)
        assert state["cfg"]["model"]["pos"] == pos
        assert state["extra_state"]["val_loss"] > 0
