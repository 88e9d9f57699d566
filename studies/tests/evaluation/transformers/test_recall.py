"""Associative recall: its sequences, what is learned of them, and how they are scored."""

import shutil

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from cape_studies import train_clm  # noqa: E402
from cape_studies.data.tokens import texts_of  # noqa: E402
from lab_support import rows, script  # noqa: E402

maker, scorer = script("make_recall.py"), script("score_recall.py")
SMALL = dict(length=16, pairs=3, train=40, test=20, times=(1, 2, 4))


@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    out = tmp_path_factory.mktemp("recall")
    maker.make(out, **SMALL)
    return out


def sequences(folder, part):
    """Tokens and labels of each."""
    tokens = texts_of(np.load(folder / f"{part}.npy"))
    labels = np.load(folder / f"{part}-labels.npy")
    return zip(tokens, np.split(labels, np.cumsum([*map(len, tokens)])[:-1]), strict=True)


FIRST_FILLER = 33  # after END, 16 keys and 16 values


def test_a_test_asks_for_each_key_once_among_filler(recall):
    found = {16: 0, 32: 0, 64: 0}
    for tokens, labels in sequences(recall, "test"):
        found[len(tokens)] += 1
        pairs = dict(tokens[1:7].reshape(3, 2).tolist())
        (asked,) = np.nonzero(labels != -100)
        assert sorted(tokens[asked - 1]) == sorted(pairs)
        assert [pairs[key] for key in tokens[asked - 1]] == tokens[asked].tolist()
        assert labels[asked].tolist() == tokens[asked].tolist()
        assert min(np.delete(tokens, [*range(7), *asked, *(asked - 1)])) >= FIRST_FILLER
    assert found == {16: 20, 32: 20, 64: 20}


def test_training_has_fewer_pairs_too_and_asks_by_chance_as_often_as_there_is_room(recall):
    """So that the values that were said tell nothing of those to come."""
    numbers, repeated = [], 0
    for tokens, labels in sequences(recall, "train"):
        (asked,) = np.nonzero(labels != -100)
        first = 7 - len(asked)  # pairs, and a place for each question that is left
        pairs = dict(tokens[1 : 1 + 2 * first].reshape(first, 2).tolist())
        assert len(pairs) == first
        assert [pairs[key] for key in tokens[asked - 1]] == labels[asked].tolist()
        assert labels[asked].tolist() == tokens[asked].tolist()
        numbers.append(first)
        repeated += len({*tokens[asked - 1]}) < min(first, len(asked))
    assert {*numbers} == {1, 2, 3}
    assert min(map(numbers.count, (1, 2, 3))) > 5  # of 40: equally often
    assert repeated


def test_in_a_longer_test_keys_are_asked_for_anywhere(recall):
    asked = [
        np.nonzero(labels != -100)[0]
        for tokens, labels in sequences(recall, "test")
        if len(tokens) == 64
    ]
    assert min(map(min, asked)) < 16
    assert max(map(max, asked)) > 56


class Says(torch.nn.Module):
    """What a model is asked, and what it says: at each place the token that the answers have."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def forward(self, tokens):
        logits = torch.nn.functional.one_hot(self.answers[: len(tokens)], 99).float()
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def test_what_is_said_at_a_key_is_compared_by_the_keys_distance():
    # keys 1 and 2 with values 11 and 12, asked for at places 5 (4 from its first) and 11 (8)
    tokens = torch.tensor([[0, 1, 11, 2, 12, 1, 11, 50, 50, 50, 50, 2, 12, 50]])
    labels = torch.full_like(tokens, -100)
    labels[0, 6], labels[0, 12] = 11, 12
    said = tokens.roll(-1, 1)
    said[0, 5] = 12  # wrong: another key's value
    found = {
        one.about["condition"]: (one.value, one.weight)
        for one in scorer.of_length(Says(said), tokens, labels, [0, 4, 7, 14])
    }
    assert found["14"] == (50, 2)
    assert found["14, 1–4"] == (0, 1)
    assert found["14, 8–14"] == (100, 1)
    assert "14, 5–7" not in found


def test_labels_are_what_is_learned(recall, tmp_path):
    """Not the tokens: with one label everywhere a model says nothing else."""
    data = shutil.copytree(recall, tmp_path / "data")
    np.save(data / "train-labels.npy", np.full(40 * 16, 40, np.int16))
    config = ["hidden_size=16", "intermediate_size=24", "num_hidden_layers=1"]
    given = ["--data", str(data), "--out", str(tmp_path / "run"), "--config", *config]
    given += ["num_attention_heads=2", "--length", "16", "--batch", "4", "--steps", "20"]
    train_clm.main([*given, "--learning-rate", "0.05", "--warmup", "0"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokens = next(tokens for tokens, _ in sequences(recall, "test")).astype(np.int64)
    assert {*model(torch.from_numpy(tokens)[None]).logits[0].argmax(-1).tolist()} == {40}
    csv, items = (tmp_path / name for name in ("scores.csv", "items.csv"))
    scorer.main(data, tmp_path / "run" / "model", csv, items, trained_length=16)
    assert [row["condition"] for row in rows(csv)] == [
        *("16", "32", "32, 1–16", "32, 17–32", "64", "64, 1–16", "64, 17–32", "64, 33–64")
    ]
