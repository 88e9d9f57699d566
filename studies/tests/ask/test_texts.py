"""A user's text files: no text in two parts, lengths that the files allow, each fault by name."""

import gzip
import math
import shutil

import numpy as np
import pytest
import yaml

pytest.importorskip("transformers")

from cape_studies import report, run
from cape_studies.data.tokens import texts_of
from cape_studies.prepare import chosen, texts

CHOICES = ("batch", "epochs", "updates")


def prepared(folder, **options):
    """The facts, and the texts of each part in tokens."""
    out = folder.parent / "out"
    choices = {name: options.pop(name) for name in CHOICES if name in options}
    shutil.rmtree(out, ignore_errors=True)
    texts.prepare(folder, out, **{"vocabulary": 300} | options)
    facts = chosen.texts(yaml.safe_load((out / "facts.yaml").read_text("utf-8")), **choices)
    return facts, {part: texts_of(np.load(out / f"{part}.npy")) for part in ("train", "test")}


def moved(folder, number, into):
    """Move files to a sub-folder."""
    (folder / into).mkdir()
    for path in [path for path in sorted(folder.iterdir()) if path.is_file()][:number]:
        path.rename(folder / into / path.name)


# --- what is trained on and tested


def test_each_text_is_in_one_part_and_tests_are_long_ones(documents):
    found = texts.look(documents)
    assert found == texts.look(documents)
    assert len(found.train) + len(found.test) == 60
    assert not {*found.train} & {*found.test}
    assert min(map(len, found.test)) >= np.median([*map(len, found.train + found.test)])


def test_of_texts_that_are_there_twice_one_is_taken_and_empty_ones_are_left_out(documents):
    (documents / "copy.txt").write_bytes((documents / "0.txt").read_bytes())
    (documents / "empty.txt").write_text(" \n")
    found = texts.look(documents)
    assert len(found.train) + len(found.test) == 60
    assert "left out: 2" in found.how


def test_a_test_of_ones_own_is_tested_alone_and_files_in_no_part_are_left_out(documents):
    moved(documents, 9, "validation")
    moved(documents, 50, "Train")
    found = texts.look(documents)
    assert (len(found.train), len(found.test)) == (50, 9)
    assert "those in validation/" in found.how
    assert "left out: 1" in found.how


def test_files_are_taken_by_their_names_at_any_depth_and_compressed_too(documents):
    (documents / "inside").mkdir()
    content = (documents / "7.txt").read_bytes() + b"more"
    (documents / "inside" / "more.txt.gz").write_bytes(gzip.compress(content))
    (documents / "picture.png").write_bytes(b"\x89PNG")
    for pattern, many in (("*.txt", 60), ("*.txt*", 61)):
        found = texts.look(documents, pattern)
        assert len(found.train) + len(found.test) == many


def test_groups_of_texts_are_in_one_part_each(documents):
    for path in documents.glob("*.txt"):
        folder = documents / f"author{int(path.stem) % 6}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    facts, parts = prepared(documents, group="^[^/]+")
    found = texts.look(documents, group="^[^/]+")
    whose = {found.groups[name] for name in found.names}
    assert len(whose) == facts["groups"]["within"] == 1
    assert len(found.train) == 50
    rows = (documents.parent / "out" / "groups.csv").read_text().splitlines()
    assert len(rows) - 1 == sum(len(one) >= facts["longest"] for one in parts["test"])


def test_lengths_are_those_that_the_tests_allow(documents):
    facts, parts = prepared(documents)
    sizes = sorted(map(len, parts["test"]))
    assert facts["lengths"] == [facts["length"] * times for times in (1, 2, 4)]
    assert facts["length"] == 128
    assert facts["longest"] <= sizes[len(sizes) // 2] < 2 * facts["longest"]
    assert prepared(documents, length=300)[0]["lengths"] == [300, 600]


def test_the_facts_are_those_of_the_tokens(documents):
    facts, parts = prepared(documents, epochs=2, batch=4)
    tokens = sum(map(len, parts["train"]))
    assert f"{tokens:,} in {len(parts['train'])} files to train on" in facts["found"]
    assert facts["updates"] == round(2 * (tokens // 128) / 4)
    windows = sum(len(one) >= facts["longest"] for one in parts["test"])
    assert (
        f"{windows} of them have 512 tokens: of fewer than 30 nothing is claimed" in facts["found"]
    )
    assert prepared(documents, updates=7)[0]["updates"] == 7


def test_chance_is_the_loss_of_the_frequencies_of_training(documents):
    facts, parts = prepared(documents)
    train = np.concatenate(parts["train"])
    share = (np.bincount(train, minlength=300) + 1) / (len(train) + 300)
    windows = [one[448:512] for one in parts["test"] if len(one) >= 512]
    expected = -np.log(share[np.concatenate(windows)]).mean()
    assert facts["chance"] == pytest.approx(expected, rel=0.01)


def test_a_text_that_holds_the_tokenizers_end_is_one_text(documents):
    path = documents / "59.txt"
    path.write_text(f"before <|endoftext|> after {path.read_text()}")
    _, parts = prepared(documents)
    assert sum(map(len, parts.values())) == 60


def copied(folder, test, train, words):
    """A test begins with words of training, and is no copy."""
    taken = (folder / train).read_text().split()[100 : 100 + words]
    (folder / test).write_text(" ".join(taken + (folder / test).read_text().split()))


def test_a_chosen_test_that_is_in_training_is_left_out(documents):
    before = texts.look(documents)
    test = max(before.names, key=lambda name: int(name.removesuffix(".txt")))
    train = max({f"{i}.txt" for i in range(60)} - {*before.names}, key=lambda one: int(one[:-4]))
    tested = len(prepared(documents)[1]["test"])
    copied(documents, test, train, 800)
    facts, parts = prepared(documents)
    assert len(parts["test"]) == tested - 1
    assert "1 of them are left out, as they are in training" in facts["found"]


# --- faults


def few(folder):
    for path in [*folder.iterdir()][49:]:
        path.unlink()


def in_both(folder):
    moved(folder, 9, "test")
    moved(folder, 51, "train")
    (folder / "train" / "same.txt").write_bytes((folder / "test" / "0.txt").read_bytes())


def in_part(folder):
    """A test of one's own begins with a fourth of the words of a text of training."""
    moved(folder, 9, "test")
    moved(folder, 51, "train")
    copied(folder, "test/16.txt", "train/59.txt", 300)


def short(folder):
    for path in folder.iterdir():
        path.write_text(path.read_text()[:40])


@pytest.mark.parametrize(
    ("spoil", "options", "named"),
    [
        (few, {}, "has 49 different texts: 50 are needed"),
        (in_both, {}, r"test/0\.txt of a test has the text of .*train/same\.txt"),
        (in_part, {}, r"test/16\.txt is in training"),
        (lambda of: (of / "3.txt").write_bytes(b"caf\xe9"), {}, r"3\.txt is not UTF-8: line 1"),
        (lambda of: None, {"pattern": "*.md"}, r"no files .* \*\.md"),
        (short, {}, "files for testing are short"),
        (lambda of: None, {"length": 5000}, r"options\.length=5000"),
        (lambda of: None, {"batch": 9999}, r"options\.batch="),
    ],
)
def test_a_fault_is_named_before_anything_is_trained(documents, spoil, options, named):
    spoil(documents)
    with pytest.raises(ValueError, match=named):
        prepared(documents, **options)


# --- the study


def test_a_dry_run_has_the_numbers_of_the_text(documents, tmp_path, capsys):
    words = ["my_text", "--data", str(documents), "--out", str(tmp_path / "out")]
    run.main([*words, "--dry-run", "prepare.prepared.options.vocabulary=300"])
    said = capsys.readouterr().out
    assert said.count("--length 128 512 ") == 0
    assert said.count("--length 128 256 512 --scored 64 --trained-length 128 ") == 45
    assert said.count("--augment-options pose_range=512") == 10


@pytest.mark.release
def test_it_is_trained_to_its_answer(documents, tmp_path, capsys):
    words = ["my_text", "--data", str(documents), "--out", str(tmp_path / "out"), "--quick"]
    words += ["prepare.prepared.options.vocabulary=300", "run=[rope,rope_yarn,pose_rope,fire]"]
    run.main(words)
    said = capsys.readouterr().out
    assert "In training's length: " in said
    assert "Longer than training's: " in said
    assert "the frequencies of tokens" in said
    report.main(words)
    assert "rope_yarn" in capsys.readouterr().out
    trained = [path.parent.name for path in tmp_path.glob("out/runs/*/trained.yaml")]
    assert len(trained) == 3  # rope with YaRN in the test is rope's training
    losses = [
        float(line.split(",")[4])
        for path in tmp_path.glob("out/runs/*/length-*/scores.csv")
        for line in path.read_text().splitlines()
        if ",loss," in line and ",all," in line
    ]
    assert losses
    assert all(0 < loss < math.inf for loss in losses)
