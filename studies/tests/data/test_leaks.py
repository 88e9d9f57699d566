"""A test that training has seen: a fifth of the runs of 16 tokens in its beginning."""

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")

from cape_studies.data import tokens  # noqa: E402

LONGEST = 115  # tokens of a test: 100 runs


@pytest.fixture
def parts(tmp_path):
    """Write a training of 2,000 tokens, and tests of LONGEST + 5 tokens, whose first ones
    come from it: as many as are given."""

    def write(*copied, at=1000):
        draw = np.random.default_rng(0)
        train = np.r_[0, draw.integers(1, 500, 1999)].astype(np.uint16)
        tests = [np.r_[0, draw.integers(500, 999, LONGEST + 4)] for _ in copied]
        for test, many in zip(tests, copied, strict=True):
            test[1 : 1 + many] = train[at : at + many]
        np.save(tmp_path / "train.npy", train)
        np.save(tmp_path / "test.npy", np.concatenate(tests).astype(np.uint16))
        return tmp_path

    return write


def test_a_fifth_of_the_runs_is_a_leak(parts):
    assert tokens.leaks(parts(34, 35, 0, 100), "test", LONGEST) == [1, 3]  # 19, 20, 0, 85 runs


def test_only_the_tokens_that_are_tested_are_looked_at(parts):
    folder = parts(40)  # 25 runs: of 100, or of 105
    assert tokens.leaks(folder, "test", LONGEST + 5) == [0]
    assert tokens.leaks(folder, "test", LONGEST + 6) == []  # no test is made of it


def test_a_leak_is_found_where_pieces_of_training_meet(parts, monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK", 7)
    assert tokens.leaks(parts(34, 35), "test", LONGEST) == [1]


def test_texts_are_left_out_by_their_number(parts):
    folder = parts(0, 35, 0)
    before = tokens.texts_of(np.load(folder / "test.npy"))
    assert tokens.leave_out(folder, "test", [1]) == 2
    after = tokens.texts_of(np.load(folder / "test.npy"))
    assert [*map(list, after)] == [list(before[0]), list(before[2])]


def test_files_of_a_folder_are_in_one_part(tmp_path):
    draw = np.random.default_rng(0)
    for number in range(120):
        path = tmp_path / "text" / f"folder{number % 60}" / "in" / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"folder{number % 60}\n" + " ".join(map(str, draw.integers(9, size=50))))
    tokens.make(str(tmp_path / "text"), tmp_path, vocabulary=300)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    folders = {
        part: [tokenizer.decode(one[1:]).split()[0] for one in tokens.texts_of(np.load(path))]
        for part in tokens.PARTS
        for path in [tmp_path / f"{part}.npy"]
    }
    assert sum(map(len, folders.values())) == 120
    assert sum(len({*one}) for one in folders.values()) == 60
