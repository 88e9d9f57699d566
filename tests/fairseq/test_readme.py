"""The first steps of README and of integrations/fairseq/README.md, on a small corpus."""

import itertools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")
pytest.importorskip("subword_nmt")
pytestmark = pytest.mark.release

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "integrations" / "fairseq" / "README.md"
FIRST_STEPS, _ = README.read_text().split("**Without autoload**")
BLOCKS = re.findall(r"```sh\n(.*?)```", FIRST_STEPS, flags=re.DOTALL)
NOUNS = {"dog": "hund", "cat": "katze", "child": "kind", "man": "mann", "bird": "vogel"}
WORDS = {"small": "klein", "big": "groß", "old": "alt", "young": "jung", "red": "rot"}
VERBS = {"runs": "rennt", "sleeps": "schläft", "eats": "isst", "sings": "singt"}


def shell(folder, script):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """2,000 sentences to learn from: a big dog runs and a red bird sings."""
    clauses = [
        (f"a {word} {noun} {verb}", f"ein {WORDS[word]} {NOUNS[noun]} {VERBS[verb]}")
        for word, noun, verb in itertools.product(WORDS, NOUNS, VERBS)
    ]
    pairs = [
        (f"{a} and {b}", f"{x} und {y}") for (a, x), (b, y) in itertools.product(clauses, clauses)
    ]
    folder = tmp_path_factory.mktemp("own")
    for split, chosen in (("train", pairs[::5]), ("valid", pairs[1::97]), ("test", pairs[2::97])):
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in chosen)
            (folder / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return folder


def test_the_quickstart_learns_within_its_ten_epochs_on_a_cpu(text):
    quickstart, _ = BLOCKS
    for line in quickstart.replace("\\\n", " ").splitlines():
        assert " --cpu" in line or not re.search(
            r"fairseq-(train|generate|interactive|validate)", line
        )
    output = shell(text, quickstart)
    (bleu,) = re.findall(r"BLEU4 = ([\d.]+)", output)
    assert float(bleu) > 50
    assert re.search(r"^H-0\t", output, flags=re.MULTILINE)


def test_two_processes_train_together_as_the_readme_says(text):
    quickstart, two = BLOCKS
    if not (text / "data-bin").exists():
        shell(text, quickstart.split("fairseq-train")[0])
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    two = two.replace("29500", str(port)).replace("--max-epoch 10", "--max-update 3")
    output = shell(text, two.replace("wait", "for job in $(jobs -p); do wait $job; done"))
    assert "training on 2 devices" in output
    assert (text / "checkpoints2" / "checkpoint_last.pt").is_file()


def test_the_quickstart_of_the_first_page_trains_and_translates(data, tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (script,) = (block for block in blocks if "fairseq-train" in block)
    smaller = "--max-update 2 --cpu --required-batch-size-multiple 1"
    for side in ("encoder", "decoder"):
        smaller += f" --{side}-layers 1 --{side}-embed-dim 16 --{side}-ffn-embed-dim 32"
    assert script.count("--max-epoch 50") == 1
    script = script.replace("--max-epoch 50", smaller)
    script = script.replace("fairseq-generate data-bin", "fairseq-generate data-bin --cpu")
    (tmp_path / "data-bin").symlink_to(data)
    output = shell(tmp_path, script)
    assert re.search(r"^H-0\t", output, flags=re.MULTILINE)
    assert "BLEU4 = " in output
