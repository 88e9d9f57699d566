"""Several processes, accumulated updates and half precision, through fairseq-train."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")

TRAIN = (
    *("--arch", "cape_transformer_tiny", "--dropout", 0, "--optimizer", "adam", "--lr", 0.005),
    *("--encoder-normalize-before", "--decoder-normalize-before"),
    *("--criterion", "label_smoothed_cross_entropy", "--num-workers", 0, "--seed", 3),
    *("--no-epoch-checkpoints", "--required-batch-size-multiple", 1, "--disable-validation"),
    *("--batch-size", 5, "--max-update", 4),
)
# each process draws for itself, so equal weights need a training without augmentation
NO_AUGMENTATION = ("--max-global-shift", 0, "--max-local-shift", 0)


def weights(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def test_two_processes_train_like_one_with_twice_the_batches(data, run, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    port = free_port()
    ranks = [
        subprocess.Popen(
            [str(Path(sys.executable).parent / "fairseq-train"), str(data), "--cpu"]
            + [str(flag) for flag in (*TRAIN, *NO_AUGMENTATION)]
            + ["--save-dir", str(tmp_path / "two"), "--distributed-world-size", "2"]
            + ["--distributed-init-method", f"tcp://localhost:{port}"]
            + ["--distributed-rank", str(rank), "--distributed-no-spawn"]
            + ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    run(
        *("fairseq-train", data, "--cpu", *TRAIN, *NO_AUGMENTATION),
        *("--update-freq", 2, "--save-dir", tmp_path / "one"),
    )
    for rank in ranks:
        output, _ = rank.communicate()
        assert rank.returncode == 0, output[-3000:]
    one = weights(tmp_path / "one")
    for name, found in weights(tmp_path / "two").items():
        torch.testing.assert_close(found, one[name], rtol=0, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fairseq has no half precision on a CPU")
@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
def test_half_precision_trains_on_a_gpu(data, run, tmp_path, precision):
    run(
        *("fairseq-train", data, *TRAIN, precision, "--save-dir", tmp_path),
        CUDA_VISIBLE_DEVICES="0",
    )
    assert all(found.isfinite().all() for found in weights(tmp_path).values())
