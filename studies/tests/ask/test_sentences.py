"""A user's sentences: the longest held out, counted as fairseq reads them, each fault by name."""

import random
import shutil

import pytest
import yaml

pytest.importorskip("fairseq")

from fairseq.data.data_utils import load_indexed_dataset

from cape_studies.prepare import chosen, sentences

CHOICES = ("max_tokens", "epochs", "updates")


def prepared(folder, **options):
    """The facts, and how many pairs fairseq reads of train and of the tests."""
    out = folder.parent / "out"
    choices = {name: options.pop(name) for name in CHOICES if name in options}
    shutil.rmtree(out, ignore_errors=True)
    sentences.prepare(folder, out, **options)
    facts = chosen.sentences(yaml.safe_load((out / "facts.yaml").read_text("utf-8")), **choices)
    pair = f"{facts['source']}-{facts['target']}"
    names = ["train", *facts["subsets"].split(",")]
    paths = (f"{out}/bin/{name}.{pair}.{facts['target']}" for name in names)
    return facts, {
        name: len(load_indexed_dataset(path, None)) for name, path in zip(names, paths, strict=True)
    }


def lines(path, change):
    """Change the list of lines of a file."""
    every = path.read_text("utf-8").splitlines()
    change(every)
    path.write_text("".join(f"{line}\n" for line in every), "utf-8")


def bring(folder, languages, line, name="test"):
    """A test of two lines, of which the second is one of training."""
    for language in languages:
        known = (folder / f"train.{language}").read_text("utf-8").splitlines()[line]
        (folder / f"{name}.{language}").write_text(f"neu\n{known}\n", "utf-8")


def few(every):
    del every[49:]


def encoded(path, encoding):
    path.write_bytes(path.read_text("utf-8").encode(encoding))


# --- what is trained on and tested


def test_sentences_are_in_one_part_each_and_the_long_ones_in_the_tests(text):
    found = sentences.look(text, "en")
    assert found.languages == ("en", "de")
    parts = [found.train, *found.tests.values()]
    assert len({pair for part in parts for pair in part}) == sum(map(len, parts))
    ranges = [{len(pair.split("\t")[0].split()) for pair in part} for part in parts]
    assert [max(one) for one in ranges] == [18, 18, 19, 20, 21]
    assert ranges[2:] == [{19}, {20}, {21}]
    assert found.tests == sentences.look(text, "en").tests


def test_the_facts_are_those_of_what_fairseq_reads(text):
    facts, read = prepared(text, source="en")
    assert (facts["source"], facts["target"]) == ("en", "de")
    assert facts["subsets"].split(",")[1:] == ["19-19", "20-20", "21-21"]
    assert facts["within"] == facts["subsets"].split(",")[0] == "1-18"
    assert f"{read['train']:,} pairs from en to de to train on" in facts["found"]
    assert f"{200 - sum(read.values())} pairs are left out" in facts["found"]
    assert "as sacremoses splits it, in subwords" in facts["found"]
    assert "BLEU is of these tokens, and no sacreBLEU" in facts["found"]


def test_the_length_of_training_is_that_of_epochs_or_of_updates(text):
    one, _ = prepared(text, epochs=1, max_tokens=100)
    ten, _ = prepared(text, epochs=10, max_tokens=100)
    assert ten["updates"] == 10 * one["updates"] > 50
    assert "about 10 epochs" in ten["found"]
    assert ten["warmup"] == ten["updates"] // 5
    assert prepared(text, updates=7)[0]["updates"] == 7


def test_languages_may_have_hyphens_and_long_references_are_told(text):
    (text / "train.en").rename(text / "train.zh-CN")
    lines(text / "train.de", lambda of: of.append("ein " * 300))
    lines(text / "train.zh-CN", lambda of: of.append("one " * 300))
    facts, read = prepared(text)
    assert facts["target"] == "zh-CN"
    assert facts["longest"] >= 300  # for --max-len-b
    assert sum(read.values()) > 100


def test_text_is_taken_as_split_if_much_of_it_is_and_not_for_a_single_mark(text):
    def written() -> str:
        prepared(text)
        return "".join(path.read_text("utf-8") for path in (text.parent / "out/text").iterdir())

    lines(text / "train.de", lambda of: of.__setitem__(3, "sieben@@ undzwanzig ."))
    assert "sieben @ @" in written()
    for path in text.glob("train.*"):
        path.write_text(path.read_text("utf-8").replace(" .", " z@@ .").replace(" Z@@", " z@@"))
    assert "z@@ ." in written()


def own(folder, *names, languages=("de", "en")):
    """A test of one pair under each name."""
    for number, name in enumerate(names):
        for language in languages:
            (folder / f"{name}.{language}").write_text(f"neu {number} {language}\n")


@pytest.mark.parametrize("name", ["val", "test_2016_flickr"])
def test_the_users_own_test_may_have_other_names(text, name):
    own(text, name)
    found = sentences.look(text)
    assert found.how == f"from {name}.*"
    assert next(iter(found.tests.values())) == ["neu 0 de\tneu 0 en"]


def test_a_test_is_taken_before_a_validation_and_other_files_are_named(text):
    own(text, "dev", "test_2017", "test_2016")
    (text / "README.md").write_text("mine")
    said = sentences.look(text).how
    assert said.startswith("from test_2016.* (not used: README.md, dev.de, dev.en, test_2017.de")


def test_pairs_that_are_their_own_targets_are_left_out(text):
    same = "das bleibt so ."
    for language in ("de", "en"):
        lines(text / f"train.{language}", lambda of: of.append(same))
    found = sentences.look(text)
    assert not [
        pair for part in (found.train, *found.tests.values()) for pair in part if same in pair
    ]


def test_groups_of_pairs_are_a_file_beside_and_in_one_part_each(text):
    (text / "train.doc").write_text("".join(f"d{i // 5}\n" for i in range(200)))
    facts, read = prepared(text, group="doc")
    assert (facts["source"], facts["target"]) == ("de", "en")
    found = sentences.look(text, group="doc")
    trained, *tested = (
        {found.groups[x] for x in part} for part in (found.train, *found.tests.values())
    )
    assert trained
    assert not trained & set().union(*tested)
    rows = (text.parent / "out" / "groups.csv").read_text().splitlines()
    assert rows[0] == "condition,item,group"
    assert len(rows) - 1 == sum(read.values()) - read["train"]
    (text / "train.doc").write_text("d0\n")
    with pytest.raises(ValueError, match=r"train\.doc has 1 lines for 200 pairs"):
        sentences.look(text, group="doc")


# --- faults


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda of: lines(of / "train.en", list.pop), r"train\.de and train\.en have 200 and 199"),
        (lambda of: lines(of / "train.en", lambda x: x.__setitem__(4, " ")), "train.en line 5 is"),
        (lambda of: bring(of, ["de", "en"], 7), r"test\.\* line 2 .* train\.\* too"),
        (lambda of: shutil.copy(of / "train.de", of / "train.en"), "0 different pairs .196 more"),
        (lambda of: bring(of, ["de"], 7), r"test\.\* in one language alone: add test\.en"),
        (lambda of: [lines(of / f"train.{x}", few) for x in ("de", "en")], "different pairs: 50"),
        (lambda of: (of / "train.fr").write_text("un\n"), r"train\.de, train\.en, train\.fr"),
        (lambda of: encoded(of / "train.de", "latin-1"), r"train\.de is not UTF-8: line \d+"),
        (
            lambda of: (of / "train.en").write_text("這句話之間沒有任何空格。\n" * 200, "utf-8"),
            r"train\.en has no spaces",
        ),
    ],
)
def test_a_fault_of_text_is_named_with_its_file(text, spoil, named):
    spoil(text)
    with pytest.raises(ValueError, match=named):
        sentences.look(text)


def test_a_pair_that_fairseq_cannot_take_is_named_with_its_beginning(text):
    draw = random.Random(1)
    many = " ".join("".join(draw.choices("abcdefgh", k=6)) for _ in range(400))
    lines(text / "train.de", lambda of: of.append(f"Am Anfang {many}"))
    lines(text / "train.en", lambda of: of.append("One"))
    with pytest.raises(ValueError, match=r"has [\d,]+ subwords on a side, .* 'Am Anfang"):
        prepared(text)
