"""The first steps of README and of integrations/fairseq/README.md, on a small corpus."""

import itertools
import re

import pytest

pytest.importorskip("subword_nmt")

from cape_support import ROOT, block_with, shell

pytestmark = pytest.mark.release

README = ROOT / "integrations" / "fairseq" / "README.md"
FIRST_STEPS = block_with(README, "subword-nmt learn-bpe")
# what a sentence has, in English and German
WORDS = [("small", "klein"), ("big", "groß"), ("old", "alt"), ("young", "jung"), ("red", "rot")]
NOUNS = [("dog", "hund"), ("cat", "katze"), ("child", "kind"), ("man", "mann"), ("bird", "vogel")]
VERBS = [("runs", "rennt"), ("sleeps", "schläft"), ("eats", "isst"), ("sings", "singt")]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """2,000 sentences to learn from: a big dog runs and a red bird sings."""
    folder = tmp_path_factory.mktemp("own")
    for side, (language, a, link) in enumerate((("en", "a", "and"), ("de", "ein", "und"))):
        parts = ([word[side] for word in kind] for kind in (WORDS, NOUNS, VERBS))
        clauses = [f"{a} {' '.join(words)}" for words in itertools.product(*parts)]
        lines = [f"{x} {link} {y}\n" for x, y in itertools.product(clauses, clauses)]
        for split, chosen in (
            ("train", lines[::5]),
            ("valid", lines[1::97]),
            ("test", lines[2::97]),
        ):
            (folder / f"{split}.{language}").write_text("".join(chosen), encoding="utf-8")
    return folder


def test_the_quickstart_learns_within_its_ten_epochs_on_a_cpu(text):
    output = shell(FIRST_STEPS, text, CUDA_VISIBLE_DEVICES="")
    (bleu,) = re.findall(r"BLEU4 = ([\d.]+)", output)
    assert float(bleu) > 50
    assert re.search(r"^H-0\t", output, flags=re.MULTILINE)


def test_a_language_model_is_trained_and_scored(text):
    if not (text / "bpe").exists():
        shell(FIRST_STEPS.split("fairseq-preprocess")[0], text, CUDA_VISIBLE_DEVICES="")
    script = block_with(README, "cape_transformer_lm")
    assert script.count("--max-epoch 3") == 1
    output = shell(
        script.replace("--max-epoch 3", "--max-update 20"), text, CUDA_VISIBLE_DEVICES=""
    )
    (perplexity,) = re.findall(r"Perplexity: ([\d.]+)", output)
    assert float(perplexity) > 1.5


def test_the_quickstart_of_the_first_page_trains_and_translates(data, tmp_path):
    script = block_with(ROOT / "README.md", "fairseq-train")
    smaller = "--max-update 2 --cpu --required-batch-size-multiple 1"
    for side in ("encoder", "decoder"):
        smaller += f" --{side}-layers 1 --{side}-embed-dim 16 --{side}-ffn-embed-dim 32"
    assert script.count("--max-epoch 50") == 1
    script = script.replace("--max-epoch 50", smaller)
    script = script.replace("fairseq-generate data-bin", "fairseq-generate data-bin --cpu")
    (tmp_path / "data-bin").symlink_to(data)
    output = shell(script, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert re.search(r"^H-0\t", output, flags=re.MULTILINE)
    assert "BLEU4 = " in output
