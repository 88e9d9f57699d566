"""The README's first steps, on a small corpus."""

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

README = Path(__file__).resolve().parents[2] / "integrations" / "fairseq" / "README.md"
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
