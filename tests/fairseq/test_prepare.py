"""integrations/fairseq/prepare_*: the real tools, on small corpora in the layout of the real."""

import gzip
import io
import sys
import tarfile

import pytest

pytest.importorskip("cape_studies")
pytest.importorskip("sacremoses")
pytest.importorskip("subword_nmt")

from fairseq.data import data_utils

from cape_support import ROOT, run
from fairseq_support import PAIRS

pytestmark = pytest.mark.release

SCRIPTS = ROOT / "integrations" / "fairseq"
ENGLISH = "A dog, a well-known one, runs & doesn't stop."
GERMAN = "Ein Hund, ein bekannter, läuft & hält nicht an."


def prepare_multi30k(*arguments):
    return run(sys.executable, SCRIPTS / "prepare_multi30k.py", "--merges", 40, *arguments)


def prepare(raw, out, *flags):
    """prepare_multi30k.py into a folder that it makes."""
    status, output = prepare_multi30k(raw, out, *flags)
    assert status == 0, output
    return out


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def sizes(out, split, source="en", target="de"):
    """Tokens of each binarised sentence, EOS included: (source, target)."""
    found = []
    for language in (source, target):
        prefix = str(out / "data-bin" / f"{split}.{source}-{target}.{language}")
        dataset = data_utils.load_indexed_dataset(prefix, None, None)  # owns the sizes' memory
        found.append(dataset.sizes.tolist())
    return found


def segmented(out, split, *languages):
    """The same of the text after BPE."""
    texts = [lines(out / "bpe" / f"{split}.{language}") for language in languages or ("en", "de")]
    return [[len(line.split()) + 1 for line in text] for text in texts]


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory):
    """Raw text as Multi30k has it, with one empty line, and what the script makes of it; val is
    from Windows, with a byte order mark."""
    raw = tmp_path_factory.mktemp("multi30k")
    sentences = [(ENGLISH, GERMAN), *PAIRS, ("", "leer")]
    for name in ("train", "val", "test_2016_flickr"):
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in sentences)
            if name == "val":
                text = "\ufeff" + text.replace("\n", "\r\n")
            (raw / f"{name}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    return prepare(raw, raw / "prepared")


def test_multi30k_keeps_raw_and_tokenised_text_without_empty_pairs(multi30k):
    for split in ("train", "valid", "test"):
        assert lines(multi30k / "raw" / f"{split}.en") == [ENGLISH, *(en for en, _ in PAIRS)]
        tokenised = lines(multi30k / "tokenised" / f"{split}.en")
        assert tokenised[0] == "A dog , a well-known one , runs & doesn 't stop ."
        assert tokenised[1:] == [en for en, _ in PAIRS]


def test_multi30k_is_binarised_after_bpe_with_one_dictionary(multi30k):
    english, german = (lines(multi30k / "data-bin" / f"dict.{lang}.txt") for lang in ("en", "de"))
    assert english == german
    assert sizes(multi30k, "train") == segmented(multi30k, "train")
    bpe = lines(multi30k / "bpe" / "train.de")
    assert any("@@ " in line for line in bpe)
    joined = [line.replace("@@ ", "") for line in bpe]
    assert joined == lines(multi30k / "tokenised" / "train.de")


def test_training_lines_may_be_several_captions_the_same_in_both_languages(multi30k, tmp_path):
    out = prepare(multi30k.parent, tmp_path / "joined", "--join", 3)
    single, joined = (lines(folder / "tokenised" / "train.en") for folder in (multi30k, out))
    assert len(single) / 3 <= len(joined) < len(single)
    words = [" ".join(text).lower().replace(".", ",") for text in (single, joined)]
    assert words[0] == words[1]  # no caption is lost, and none comes twice
    assert sizes(out, "train") == segmented(out, "train")
    assert len(sizes(out, "train")[1]) == len(joined)
    for folder in ("raw", "tokenised"):
        assert lines(out / folder / "test.en") == lines(multi30k / folder / "test.en")


def test_long_pairs_are_held_out_of_training_and_tested_apart(multi30k, tmp_path):
    out = prepare(multi30k.parent, tmp_path / "held_out", "--held-out", 9, 15)
    lengths = {}
    for split in ("train", "valid", "test", "test1", "test2", "test3"):
        found = sizes(out, split)
        assert found == segmented(out, split)
        assert len(found[0]) == len(lines(out / "raw" / f"{split}.de"))
        lengths[split] = list(zip(*found, strict=True))
    every = lengths["test"]  # with EOS, and of the same sentences as train and valid
    assert every == list(zip(*sizes(multi30k, "test"), strict=True))
    short = [pair for pair in every if max(pair) - 1 <= 9]
    assert lengths["train"] == lengths["valid"] == lengths["test1"] == short
    assert lengths["test2"] == [pair for pair in every if min(pair) - 1 > 15] == lengths["test3"]
    assert 0 < len(lengths["test2"]) < len(every) - len(short)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--held-out", 5, 900), "--held-out 5 900"),
        (("-t", "fr"), "train.fr.gz cannot be read"),
        (("-t", "yy"), "train.yy.gz is not UTF-8"),
        (("-t", "xx"), "train.xx.gz"),
    ],
)
def test_multi30k_refuses_in_one_line(multi30k, tmp_path, flags, message):
    (multi30k.parent / "train.xx.gz").write_bytes(gzip.compress(b"one\n"))
    (multi30k.parent / "train.yy.gz").write_bytes(gzip.compress("one\n".encode("utf-16")))
    status, output = prepare_multi30k(multi30k.parent, tmp_path / "out", *flags)
    assert status == 2
    assert message in output.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def archive(folder, name, files):
    """A tar archive of texts, as WMT's."""
    with tarfile.open(folder / name, "w:gz" if name.endswith("tgz") else "w") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def sgm(sentences):
    body = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(sentences, 1))
    return f'<refset>\n<doc docid="x">\n<p>\n{body}</p>\n</doc>\n</refset>\n'.encode()


def prepare_wmt(folder, target, corpora):
    """prepare_wmt14.sh on archives with the given sentence pairs: {archive: {path: pairs}}."""
    for name, members in corpora.items():
        files = {}
        for path, pairs in members.items():
            for side, language in enumerate(("en", target)):
                files[f"{path}.{language}"] = "".join(p[side] + "\n" for p in pairs).encode()
        if name.endswith(".tar"):
            files = {f"{path}.gz": gzip.compress(data) for path, data in files.items()}
        archive(folder, name, files)
    test = [("“Dogs” &amp; cats’ food", "Futter für Hunde &amp; Katzen"), (ENGLISH, GERMAN)]
    name = f"test-full/newstest2014-{target}en"
    files = {
        f"{name}-src.en.sgm": sgm([en for en, _ in test]),
        f"{name}-ref.{target}.sgm": sgm([other for _, other in test]),
    }
    archive(folder, "test-full.tgz", files)
    out = folder / "a folder"
    env = {"ORIG": folder, "JOBS": 2, "MERGES": 60}
    status, output = run("bash", SCRIPTS / "prepare_wmt14.sh", target, out, **env)
    assert status == 0, output
    return out


def test_wmt14_german_is_cleaned_before_bpe_and_validated_on_newstest2013(tmp_path):
    long = (" ".join(["word"] * 81), " ".join(["Wort"] * 70))
    uneven = (" ".join(["word"] * 10), "Wort")
    at_most = (" ".join(["word"] * 80), " ".join(["Wort"] * 9))
    stray = ("the cat\r sleeps", "die Katze schläft")
    corpora = {
        "training-parallel-europarl-v7.tgz": {"training/europarl-v7.de-en": [*PAIRS, long]},
        "training-parallel-commoncrawl.tgz": {"commoncrawl.de-en": [uneven, at_most, stray]},
        "training-parallel-nc-v12.tgz": {"training/news-commentary-v12.de-en": [(ENGLISH, GERMAN)]},
        "dev.tgz": {"dev/newstest2013": PAIRS[:4]},
    }
    out = prepare_wmt(tmp_path, "de", corpora)
    english = lines(out / "tokenised" / "train.en")
    assert english[:-2] == [*(en for en, _ in PAIRS), at_most[0]]
    assert english[-2] == "the cat sleeps"
    assert english[-1] == "A dog , a well @-@ known one , runs &amp; doesn &apos;t stop ."
    assert lines(out / "raw" / "valid.de") == [de for _, de in PAIRS[:4]]
    assert lines(out / "raw" / "test.en") == ["“Dogs” & cats’ food", ENGLISH]
    tokenised = lines(out / "tokenised" / "test.en")
    assert tokenised[0] == "“ Dogs ” &amp; cats &apos; food"  # its quotes are not normalised
    for split, count in (("train", 13), ("valid", 4), ("test", 2)):
        assert sizes(out, split) == segmented(out, split)
        assert len(sizes(out, split)[0]) == count


def test_wmt14_says_what_is_wrong(tmp_path):
    script = SCRIPTS / "prepare_wmt14.sh"
    assert "the target is de or fr, got 'cs'" in run("bash", script, "cs", tmp_path)[1]
    status, output = run("bash", script, "de", tmp_path / "out", MERGES="many")
    assert status != 0
    assert "MERGES must be a whole number ≥ 1, got 'many'" in output
