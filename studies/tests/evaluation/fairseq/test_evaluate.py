"""cape-fairseq-eval beside fairseq-generate, on a model that fairseq trained for seconds."""

import math
import re
from io import StringIO
from itertools import zip_longest
from pathlib import Path

import pytest

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
    *("--disable-validation", "--max-epoch", 4, "--dropout", 0),
    *("--arch", "cape_transformer_tiny", "--max-global-shift", 1, "--max-local-shift", 0.1),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Text, and binarised BPE in folder / "bin": N sentences in every subset, each two of the pairs
    with a comma between them."""
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
def trained(corpus, tmp_path_factory) -> Path:
    """Checkpoints 1 to 4 of a small model that has not quite learnt the corpus."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli.train import main

    folder = tmp_path_factory.mktemp("trained")
    given = [str(one) for one in (corpus / "bin", "--save-dir", folder, *TRAIN)]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=given)
    main(convert_namespace_to_omegaconf(args))
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


def test_the_best_checkpoint_on_valid_is_tested_with_the_bleu_of_fairseq_generate(
    corpus, trained, run, capsys, tmp_path, monkeypatch
):
    loaded, load = [], evaluate.load_model

    def counted(name, path, options):
        loaded.append(path.rpartition("/")[2])
        return load(name, path, options)

    monkeypatch.setattr(evaluate, "load_model", counted)
    search = ("--beam", 3, "--lenpen", 0.8, *SHORT)
    files = ("--reference", corpus / "tok.de", "--items", tmp_path / "items.csv")
    found = run("bleu", corpus / "bin", "--model", f"mine={trained}", *search, *files)
    check_items(found, tmp_path / "items.csv")
    assert loaded == [f"checkpoint{epoch}.pt" for epoch in (1, 2, 3, 4)]
    printed = capsys.readouterr().out
    assert "sacrebleu: BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in printed
    each = re.findall(r"checkpoint(\d).pt (\w+) bleu: .*? = ([\d.]+) ", printed)
    assert [(subset, epoch) for epoch, subset, _ in each[:-1]] == [("valid", i) for i in "1234"]
    best = max(each[:-1], key=lambda one: float(one[2]))[0]
    assert [(row["subset"], row["metric"], row["how"], row["items"]) for row in found] == [
        (subset, metric, how, str(N))
        for subset in ("valid", "test")
        for metric, how in (("bleu", "bleu_unsmoothed"), ("sacrebleu", "bleu"))
    ]
    path = trained / f"checkpoint{best}.pt"
    assert {row["checkpoint"] for row in found} == {str(path)}
    assert found[0]["value"] == found[2]["value"]  # the two sets are the same here
    output = fairseq_generate(corpus / "bin", path, capsys, *search, "--remove-bpe")
    (theirs,) = re.findall(r"BLEU4 = ([\d.]+)", output)
    assert f"{float(found[0]['value']):.2f}" == theirs
    assert float(theirs) > 1


def test_losses_are_those_of_fairseq_generate_score_reference_and_of_its_sentences(
    corpus, trained, run, capsys, tmp_path
):
    path, items = trained / "checkpoint4.pt", tmp_path / "items.csv"
    found = run("loss", corpus / "bin", "--model", path, "--items", items)
    output = fairseq_generate(corpus / "bin", path, capsys, "--score-reference")
    scores = re.findall(r"^P-\d+\t(.*)$", output, flags=re.MULTILINE)
    assert len(scores) == N
    by_position = zip_longest(*([-float(s) * math.log(2) for s in p.split()] for p in scores))
    check_items(found, items)
    for i, (row, theirs) in enumerate(zip(found, by_position, strict=True), 1):
        theirs = [loss for loss in theirs if loss is not None]
        assert (row["metric"], row["how"], int(row["position"])) == ("loss", "mean", i)
        assert int(row["items"]) == float(row["weight"]) == len(theirs)
        assert float(row["value"]) == pytest.approx(sum(theirs) / len(theirs), abs=1e-4)
    tokens = [0] * N
    for item in rows(items):
        tokens[int(item["item"])] += int(item["weight"])
    target = (corpus / "bpe.de").read_text(encoding="utf-8").splitlines()
    assert tokens == [len(line.split()) + 1 for line in target]  # with EOS
