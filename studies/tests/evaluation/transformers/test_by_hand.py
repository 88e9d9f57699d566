"""cape-transformers-eval against losses worked out with a plain Llama, all options away from their
defaults."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from cape_studies.evaluate.transformers import evaluate  # noqa: E402
from cape_studies.evaluate.transformers.evaluate import TextOptions  # noqa: E402
from lab_support import check_items  # noqa: E402

WORDS, TRAINED, THETA = 11, 16, 50.0
CONFIG = dict(
    **dict(vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2),
    **dict(num_attention_heads=2, num_key_value_heads=1, initializer_range=0.5),
    rope_parameters=dict(rope_type="default", rope_theta=THETA),
)
#: of texts in the order of the file; each begins with 0, the end of the one before
SIZES = {"test": [40, 39, 41, 50, 40, 60], "valid": [60, 40, 3]}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder, random = tmp_path_factory.mktemp("tokens"), np.random.default_rng(0)
    for part, sizes in SIZES.items():
        texts = [[0, *random.integers(1, WORDS, size - 1)] for size in sizes]
        np.save(folder / f"{part}.npy", np.concatenate(texts).astype(np.uint16))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An untrained Llama, whose losses change with positions."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    model.save_pretrained(folder := tmp_path_factory.mktemp("model") / "llama")
    return folder


def plain(folder: Path, scaling: str, length: int) -> torch.nn.Module:
    """The model, its rotations scaled by the formulas of their papers."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    if length > TRAINED and scaling != "none":
        rotary, factor, pair = model.model.rotary_emb, length / TRAINED, torch.arange(4.0)
        frequency = THETA ** (-pair / 4)  # of heads of 8 channels
        if scaling == "linear":  # Chen et al. 2023
            frequency = frequency / factor
        elif scaling == "dynamic":  # NTK-aware: the base grows, at its own length by the factor too
            grown = factor * length / TRAINED - (factor - 1)
            frequency = (THETA * grown ** (8 / 6)) ** (-pair / 4)
        else:  # YaRN: what turns less than once in training is interpolated
            assert 8 * math.log(TRAINED / (2 * math.pi)) / (2 * math.log(THETA)) < 1
            frequency = torch.where(pair < 1, frequency, frequency / factor)
            rotary.attention_scaling = 0.1 * math.log(factor) + 1
        rotary.inv_freq.copy_(frequency)
    return model


def windows(data: Path, part: str, longest: int, most: int) -> torch.Tensor:
    """The beginnings of the first texts of so many tokens."""
    tokens, sizes = np.load(data / f"{part}.npy").astype(np.int64), SIZES[part]
    begins = np.cumsum([0, *sizes])
    long = [at for at, size in zip(begins, sizes, strict=False) if size >= longest]
    return torch.tensor(np.stack([tokens[at : at + longest] for at in long[:most]]))


def nats(model: torch.nn.Module, given: torch.Tensor, amp: bool = False) -> torch.Tensor:
    """Of each token but the first, one window at a time."""
    found = []
    for one in given:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
            logits = model(one[None]).logits[0].float()
        chance = logits.softmax(-1).gather(-1, one.roll(-1)[:, None])[:-1, 0]
        found.append(-chance.log().double())
    return torch.stack(found)


@pytest.mark.parametrize(
    ("scaling", "amp", "last"),
    [("none", True, 40), ("linear", False, 39), ("dynamic", False, 39), ("yarn", False, 39)],
)
def test_losses_are_those_of_a_plain_llama(data, folder, run, tmp_path, scaling, amp, last):
    given = [f"a={folder}", folder]
    options = [
        *("--model", *given, "--data", data, "--subset", "valid", "--length", 24, 40, 12),
        *("--scored", 5, "--bins", 7, 20, last, 64, "--windows", 1, "--trained-length", TRAINED),
        *("--rope-scaling", scaling, "--items", tmp_path / "items.csv", *["--amp"] * amp),
    ]
    found = run(*options)
    check_items(found, tmp_path / "items.csv")
    read = windows(data, "valid", 40, 1)
    expected = []
    for name in ("a", "llama"):
        for length in (24, 40, 12):
            each = nats(plain(folder, scaling, length), read[:, -length:], amp)
            parts = {"all": each[:, -5:]}
            if length == 40:  # a token's loss stands one place before its position
                parts |= {"2-7": each[:, :6], "8-20": each[:, 6:19]}
                parts |= {f"21-{last}": each[:, 19 : last - 1]}
                parts |= {"40-64": each[:, 38:]} if last == 39 else {}
            for where, part in parts.items():
                about = [name, str(length), where]
                loss = part.mean().item()
                weight = str(part.numel())
                expected.append([*about, "loss", "mean", loss, "1", weight])
                expected.append([*about, "perplexity", "number", math.exp(loss), "1", weight])
    columns = ["model", "length", "position", "metric", "how", "value", "items", "weight"]
    assert list(found[0]) == [*columns[:4], "value", "how", *columns[6:]]
    assert [[row[name] for name in columns if name != "value"] for row in found] == [
        [one for one in row if not isinstance(one, float)] for row in expected
    ]
    values = [row[5] for row in expected]
    assert [float(row["value"]) for row in found] == pytest.approx(values, rel=2e-5)


def test_each_scaling_has_losses_of_its_own(data, folder):
    read = windows(data, "valid", 40, 1)
    kinds = ("none", "linear", "dynamic", "yarn")
    found = [nats(plain(folder, kind, 40), read)[:, -5:].mean().item() for kind in kinds]
    assert min(abs(a - b) for i, a in enumerate(found) for b in found[:i]) > 0.01


@pytest.mark.parametrize("most", [3, 9])
def test_windows_are_the_beginnings_of_the_first_long_texts(data, folder, most):
    options = TextOptions(model=["m"], data=data, length=[40, 20], scored=4, windows=most)
    expected = windows(data, "test", 40, most)
    assert len(expected) == min(most, 5)  # all but the text of 39
    assert torch.equal(evaluate.read_windows(options), expected)
    (score, _), _ = (
        [one for one in evaluate.run(options.model_copy(update={"model": [str(folder)]})) if
         one.about["position"] == "all" and one.about["length"] == length] for length in (40, 20)
    )  # fmt: skip
    each = nats(plain(folder, "none", 40), expected)[:, -4:].sum(dim=1).tolist()
    assert [item[0] for item in score.items] == list(range(len(expected)))
    assert [item[1] for item in score.items] == pytest.approx(each, rel=1e-5)
    assert {item[2] for item in score.items} == {4}


def test_a_batch_has_no_more_tokens_than_it_may(data, folder, monkeypatch):
    monkeypatch.setattr(evaluate, "BATCH_TOKENS", 90)
    seen, forward = [], transformers.LlamaForCausalLM.forward

    def counted(self, tokens, **more):
        seen.append(tuple(tokens.shape))
        return forward(self, tokens, **more)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", counted)
    options = TextOptions(model=["m"], data=data, length=[40], scored=4)
    model = evaluate.load(folder, 40, options)
    read = windows(data, "test", 40, 5)
    found = evaluate.losses(model, read, options)
    assert seen == [(2, 40), (2, 40), (1, 40)]
    expected = nats(plain(folder, "none", 40), read)  # one window at a time
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    seen.clear()
    monkeypatch.setattr(evaluate, "BATCH_TOKENS", 39)  # less than a window
    evaluate.losses(model, read, options)
    assert seen == [(1, 40)] * 5


def test_a_perplexity_too_great_for_a_number_is_that_of_700_nats():
    loss, perplexity = evaluate.scores({"model": "m"}, torch.full((2, 3), 800.0))
    assert (loss.value, loss.count, loss.weight) == (800, 2, 6)
    assert (perplexity.value, perplexity.how) == (math.exp(700), "number")


def test_the_defaults_are_those_of_the_page():
    options = TextOptions(model=["m"], data=Path("d"))
    assert (options.length, options.scored, options.windows) == ([256, 512, 1024], 64, 1000)
    assert options.bins == [64, 128, 256, 512, 1024]
    assert (options.subset, options.rope_scaling, options.trained_length) == ("test", "none", 256)


@pytest.mark.parametrize("scored", [12, 13])
def test_no_more_tokens_are_scored_than_the_shortest_input_predicts(data, folder, refused, scored):
    words = ("--model", folder, "--data", data, "--length", 12, 24, "--scored", scored)
    assert f"--scored {scored} must be below" in refused(*words)
    assert TextOptions(model=["m"], data=data, length=[12, 24], scored=11)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--subset", "train"), "train.npy cannot be read"),
        (("--length", 61), "--length 61: no text of"),
        (("--model",), "--model: list should have at least 1 item"),
        (("--length", 24, "--model", "=b"), "--model takes PATH or NAME=PATH, got '=b'"),
    ],
)
def test_data_that_do_not_fit_are_told(data, folder, refused, words, told):
    assert told in refused("--model", folder, "--data", data, "--scored", 4, *words)


@pytest.mark.parametrize("kind", ["cape_llama", "gpt2"])
def test_models_that_transformers_cannot_scale_are_told_beyond_training_alone(kind, tmp_path):
    sizes = CONFIG | {"pos": "rope", "rope_parameters": None}
    sizes = sizes if kind == "cape_llama" else dict(vocab_size=9, n_embd=8, n_layer=1, n_head=2)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / kind)
    options = TextOptions(
        model=["m"], data=tmp_path, length=[16], scored=4, rope_scaling="linear", trained_length=16
    )
    assert evaluate.load(tmp_path / kind, 16, options).training is False
    with pytest.raises(ValueError, match=f"--rope-scaling .*{kind}"):
        evaluate.load(tmp_path / kind, 17, options)


@pytest.mark.release
def test_two_in_one_process_find_what_each_finds_alone(data, folder, run, together):
    """A scaling, and mixed precision, are of their own command."""
    given = ["--model", folder, "--data", data, "--length", 40, 20, "--scored", 4]
    scaled = [*given, "--rope-scaling", "yarn", "--trained-length", TRAINED, "--amp"]
    alone = run(*given), run(*scaled)
    assert alone[0] != alone[1]
    assert together(scaled, given) == [alone[1], alone[0]]
