"""cape-fairseq-eval on models that fairseq trained for seconds."""

import math
import re
import shutil
import subprocess
import sys
from io import StringIO
from itertools import zip_longest

import numpy as np
import pytest
import torch

from cape_support import ROOT
from fairseq_support import PAIRS
from lab_support import check_items, rows

options = pytest.importorskip("fairseq.options")
cutter = pytest.importorskip("cape_studies.data.subwords").cutter
evaluate = pytest.importorskip("cape_studies.evaluate.fairseq.evaluate")

N = 51  # sentences of a subset
SHORT = ("--max-len-a", 1, "--max-len-b", 15)  # what has hardly learnt would go on to 200 tokens
TRAIN = (
    *("--cpu", "--optimizer", "adam", "--lr", 0.005, "--criterion", "cross_entropy"),
    *("--lr-scheduler", "fixed", "--batch-size", 7, "--num-workers", 0, "--seed", 3),
    *("--log-format", "none", "--required-batch-size-multiple", 1, "--no-last-checkpoints"),
    *("--disable-validation",),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Text, BPE codes, and binarised data in folder / "bin": N sentences in every subset, each two
    of the pairs with a comma between them."""
    from fairseq_cli.preprocess import main
    from subword_nmt.learn_bpe import learn_bpe

    folder = tmp_path_factory.mktemp("corpus")
    stacked = [(PAIRS[i % 10], PAIRS[(i // 10 + 3 * i) % 10]) for i in range(N)]
    text = {
        language: [f"{first[side]} , {second[side]} ." for first, second in stacked]
        for side, language in enumerate(("en", "de"))
    }
    codes = StringIO()
    learn_bpe(StringIO("\n".join(text["en"] + text["de"])), codes, 40)
    (folder / "codes").write_text(codes.getvalue(), encoding="utf-8")
    cut = cutter(codes.getvalue())
    for language, lines in text.items():
        (folder / f"tok.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = "".join(f"{cut(line)}\n" for line in lines)
        (folder / f"bpe.{language}").write_text(words, encoding="utf-8")
    assert "@@ " in (folder / "bpe.de").read_text(encoding="utf-8")
    given = ["--source-lang", "en", "--target-lang", "de", "--joined-dictionary"]
    for subset in ("train", "valid", "test"):
        given += [f"--{subset}pref", str(folder / "bpe")]
    given += ["--destdir", str(folder / "bin")]
    main(options.get_preprocessing_parser().parse_args(given))
    return folder


@pytest.fixture(scope="module")
def train(corpus, tmp_path_factory):
    """Arguments of fairseq-train → the folder of its checkpoints."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli.train import main

    def call(name, *arguments):
        folder = tmp_path_factory.getbasetemp() / "runs" / name
        given = [corpus / "bin", "--save-dir", folder, *TRAIN, *arguments]
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(parser, input_args=list(map(str, given)))
        main(convert_namespace_to_omegaconf(args))
        return folder

    return call


@pytest.fixture(scope="module")
def cape(train):
    """Checkpoints 1 to 4 of a small model that has not quite learnt the corpus."""
    options = ("--max-epoch", 4, "--dropout", 0, "--max-global-shift", 1, "--max-local-shift", 0.1)
    return train("cape", "--arch", "cape_transformer_tiny", *options)


@pytest.fixture(scope="module")
def best(cape):
    return cape / "checkpoint4.pt"


@pytest.fixture(scope="module")
def stock(train):
    """fairseq's own Transformer, after two epochs."""
    options = ("--max-epoch", 2, "--dropout", 0)
    return train("stock", "--arch", "transformer_tiny", *options) / "checkpoint2.pt"


@pytest.fixture(scope="module")
def abspos(train):
    """Another variant after one update; sentences of at most 64 tokens."""
    options = ("--arch", "cape_transformer_tiny", "--max-epoch", 1, "--batch-size", N)
    options += ("--max-source-positions", 64, "--max-target-positions", 64, "--pos", "abspos")
    return train("abspos", *options) / "checkpoint1.pt"


@pytest.fixture(scope="module")
def stacked(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacked") / "long"
    text = ("--source", corpus / "tok.en", "--target", corpus / "tok.de", "--min-tokens", 100)
    given = (*text, "--codes", corpus / "codes", "--data", corpus / "bin", "--out", folder)
    script = ROOT / "studies" / "data" / "stack_sentences.py"
    subprocess.run([sys.executable, script, *map(str, given)], check=True)
    return folder


def fairseq_generate(data, path, capsys, *arguments):
    """What fairseq-generate prints."""
    from fairseq_cli.generate import main

    given = [data, "--path", path, "--cpu", "--required-batch-size-multiple", 1, *arguments]
    given += ["--num-workers", 0]
    parser = options.get_generation_parser()
    capsys.readouterr()
    main(options.parse_args_and_arch(parser, input_args=list(map(str, given))))
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["best", "stock"])
def test_bleu_is_that_of_fairseq_generate_and_of_its_sentences(
    corpus, kind, run, request, capsys, tmp_path
):
    path, search = request.getfixturevalue(kind), ("--beam", 3, "--lenpen", 0.8, *SHORT)
    files = ("--reference", corpus / "tok.de", "--items", tmp_path / "items.csv")
    found = run("bleu", corpus / "bin", "--model", path, *search, *files)
    check_items(found, tmp_path / "items.csv")
    columns = ["model", "checkpoint", "subset", "metric", "value", "how", "items", "weight"]
    assert list(found[0]) == columns
    assert [(row["metric"], row["how"], row["items"]) for row in found] == [
        *(("bleu", "bleu_unsmoothed", str(N)), ("sacrebleu", "bleu", str(N)))
    ]
    printed = capsys.readouterr().out
    assert "sacrebleu: BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in printed
    output = fairseq_generate(corpus / "bin", path, capsys, *search, "--remove-bpe")
    (theirs,) = re.findall(r"BLEU4 = ([\d.]+)", output)
    assert f"{float(found[0]['value']):.2f}" == theirs
    assert float(theirs) > 1


def test_losses_are_those_of_fairseq_generate_score_reference_and_of_its_sentences(
    corpus, best, run, capsys, tmp_path
):
    found = run("loss", corpus / "bin", "--model", best, "--items", tmp_path / "items.csv")
    output = fairseq_generate(corpus / "bin", best, capsys, "--score-reference")
    scores = re.findall(r"^P-\d+\t(.*)$", output, flags=re.MULTILINE)
    assert len(scores) == N
    by_position = zip_longest(*([-float(s) * math.log(2) for s in p.split()] for p in scores))
    check_items(found, tmp_path / "items.csv")
    for i, (row, theirs) in enumerate(zip(found, by_position, strict=True), 1):
        theirs = [loss for loss in theirs if loss is not None]
        assert (row["metric"], row["how"], int(row["position"])) == ("loss", "mean", i)
        assert int(row["items"]) == float(row["weight"]) == len(theirs)
        assert float(row["value"]) == pytest.approx(sum(theirs) / len(theirs), abs=1e-4)
    tokens = [0] * N
    for item in rows(tmp_path / "items.csv"):
        tokens[int(item["item"])] += int(item["weight"])
    target = (corpus / "bpe.de").read_text(encoding="utf-8").splitlines()
    assert tokens == [len(line.split()) + 1 for line in target]  # with EOS


def test_a_checkpoint_with_the_counts_of_eval_bleu_is_loaded(corpus, best, run, tmp_path):
    state = torch.load(best)
    state["extra_state"]["metrics"]["counts"] = np.array([3, 1])  # torch ≥ 2.6 refuses arrays
    torch.save(state, tmp_path / "counts.pt")
    arguments = ("loss", corpus / "bin", "--model")
    counted, plain = run(*arguments, f"m={tmp_path / 'counts.pt'}"), run(*arguments, f"m={best}")
    assert [row["value"] for row in counted] == [row["value"] for row in plain]


def test_losses_do_not_depend_on_batches(corpus, best, run):
    found = []
    for size in ((), ("--max-tokens", 300, "--workers", 1), ("--amp",)):
        given = run("loss", corpus / "bin", "--model", best, *size)
        found.append([float(row["value"]) for row in given])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert found[0] != pytest.approx(found[2], abs=1e-5)  # mixed precision was used
    assert found[0] == pytest.approx(found[2], abs=0.1)


def test_the_checkpoint_with_the_best_validation_bleu_is_tested(corpus, cape, run, capsys):
    found = run(
        *("bleu", corpus / "bin", "--model", f"mine={cape}", "--beam", 1),
        *("--reference", corpus / "tok.de", *SHORT),
    )
    printed = re.findall(r"checkpoint(\d).pt (\w+) bleu: .*? = ([\d.]+) ", capsys.readouterr().out)
    assert [(subset, epoch) for epoch, subset, _ in printed[:-1]] == [("valid", i) for i in "1234"]
    best = max(printed[:-1], key=lambda one: float(one[2]))[0]
    assert [(row["subset"], row["metric"]) for row in found] == [
        *(("valid", "bleu"), ("valid", "sacrebleu"), ("test", "bleu"), ("test", "sacrebleu"))
    ]
    assert {row["checkpoint"] for row in found} == {str(cape / f"checkpoint{best}.pt")}
    assert found[0]["value"] == found[2]["value"]  # the two sets are the same here


def test_a_stacked_set_is_scored_with_the_dictionaries_of_the_training(corpus, best, stacked, run):
    lines = (stacked / "stacked.de").read_text(encoding="utf-8").splitlines()
    assert min(len(line.split()) for line in lines) >= 100
    found = run("loss", stacked, "--model", best)
    assert [int(row["items"]) for row in found[:101]] == [len(lines)] * 101
    assert len(found) == max(len(line.split()) for line in lines) + 1
    for language in ("en", "de"):
        name = f"dict.{language}.txt"
        assert (stacked / name).read_bytes() == (corpus / "bin" / name).read_bytes()
    text = (corpus / "tok.de").read_text(encoding="utf-8").splitlines()
    whole, found = (" ".join(one).replace(" .", " ,") for one in (text, lines))
    assert whole.startswith(found.replace("@@ ", ""))  # the last are left off


def test_each_checkpoint_is_loaded_once_however_many_subsets_are_tested(
    corpus, cape, run, monkeypatch
):
    loaded = []
    load = evaluate.load_model

    def counted(name, path, options):
        loaded.append(path.rpartition("/")[2])
        return load(name, path, options)

    monkeypatch.setattr(evaluate, "load_model", counted)
    found = run("bleu", corpus / "bin", "--gen-subset", "test,valid", *SHORT, "--model", cape)
    assert loaded == [f"checkpoint{epoch}.pt" for epoch in (1, 2, 3, 4)]
    assert {row["subset"] for row in found} == {"valid", "test"}


def test_hypotheses_are_detokenised_for_sacrebleu():
    translations = [("Ein Hund , der rennt .", "Ein Hund , der läuft .")]
    split, found = evaluate.bleu_scores({}, translations, "de", ["Ein Hund, der rennt."])
    assert (split.value < 100, found.value) == (True, pytest.approx(100))
    _, found = evaluate.bleu_scores({}, translations, "de")
    assert found.value < 100


def test_too_long_sentences_are_refused(stacked, abspos, best, refused):
    message = refused("bleu", stacked, "--model", best, "--max-len-b", 50)
    assert "but hypotheses would end at 50" in message
    assert "--max-len-a 2" in message
    message = refused("loss", stacked, "--model", abspos)
    assert re.search(r"a source sentence of 'test' has \d+ tokens; .* at most 64", message)
    message = refused("loss", stacked, "--model", best, "--max-tokens", 40)
    assert message.endswith("--max-tokens is 40")


def test_other_dictionaries_are_refused(corpus, best, refused, tmp_path):
    data = shutil.copytree(corpus / "bin", tmp_path / "bin")
    words = (data / "dict.de.txt").read_text(encoding="utf-8").splitlines()
    (data / "dict.de.txt").write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    assert "dict.de.txt differ" in refused("loss", data, "--model", best)
    (data / "dict.de.txt").write_text("\n".join([*words, "new 1"]) + "\n")
    assert "cannot be loaded" in refused("loss", data, "--model", best)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bleu bin --model nowhere.pt", "nowhere.pt cannot be loaded .*nowhere.pt"),
        ("bleu bin --model no.pt", "no.pt cannot be loaded"),
        ("loss nothing --model PT", "cannot be loaded with nothing"),
        ("loss bin --model PT --gen-subset a", "Dataset not found: a .*bin.* en-de"),
        ("bleu bin --model PT --csv there.csv", "there.csv exists: .*--overwrite"),
        ("bleu bin --model .", "./checkpoint_best.pt cannot be loaded"),
        ("loss bin --model a=CAPE", "cape/checkpoint_best.pt cannot be loaded"),
        ("bleu bin --model PT --reference there.csv", f"there.csv has 1 lines, .* has {N} "),
        ("loss bin --model PT --beam 2", "--beam is of bleu, not of loss"),
        ("bleu bin --model PT --reference there.csv --gen-subset test,valid", "--gen-subset"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(
    corpus, cape, refused, tmp_path, monkeypatch, arguments, message
):
    (tmp_path / "there.csv").write_text("kept")
    (tmp_path / "no.pt").write_text("no checkpoint")
    (tmp_path / "bin").symlink_to(corpus / "bin")
    monkeypatch.chdir(tmp_path)
    given = arguments.replace("PT", f"{cape}/checkpoint4.pt").replace("CAPE", str(cape))
    assert re.search(message, refused(*given.split()))
    assert (tmp_path / "there.csv").read_text() == "kept"
