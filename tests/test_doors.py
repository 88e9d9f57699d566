"""docs/other-doors.md: each example is run as it stands there, on batches made here."""

import re
import sys

import pytest
import torch

import cape_support
from cape_plugins import Positions
from cape_support import ROOT

PAGE = (ROOT / "docs" / "other-doors.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.S | re.M))


def blocks(section: str, language: str = "python") -> list[str]:
    return cape_support.blocks(SECTIONS[section], language)


def tagged(count: int, seed: int) -> list[tuple[torch.Tensor, ...]]:
    """Batches of words; a word's tag tells whether the word before it is odd: order matters."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        words = torch.randint(1, 9, (32, 10), generator=generator)
        lengths = torch.randint(5, 11, (32,), generator=generator)
        tags = words.roll(1, 1) % 2
        tags[:, 0] = -100
        tags[torch.arange(10) >= lengths[:, None]] = -100
        found.append((words, lengths, tags))
    return found


def right(model: torch.nn.Module) -> float:
    """The share of tags that a model in evaluation gives right."""
    ((words, lengths, tags),) = tagged(1, seed=1)
    with torch.inference_mode():
        guessed = model.eval()(words, lengths).argmax(dim=-1)
    return (guessed == tags)[tags >= 0].float().mean().item()


def test_every_door_is_tested_or_closed():
    tests = {"Plain PyTorch", "Lightning", "torchaudio", "SpeechBrain", "transformers"}
    assert set(SECTIONS) == {*tests, "NeMo"}
    assert not blocks("NeMo")


def test_plain_pytorch_learns_what_needs_positions():
    torch.manual_seed(0)
    names: dict = {"batches": tagged(300, seed=0)}
    for block in blocks("Plain PyTorch"):
        exec(block, names)
    assert right(names["model"]) > 0.95


@pytest.mark.parametrize("pos", ["rope", "relpos", "alibi"])
def test_attention_of_ones_own_takes_variants_that_act_there(pos):
    torch.manual_seed(0)
    names: dict = {"batches": tagged(1, seed=0)}
    for block in blocks("Plain PyTorch"):
        exec(block, names)
    model = names["RotaryTagger"](9, 2, pos)
    ((words, lengths, _),) = tagged(1, seed=0)
    found = model(words, lengths)
    longer = model(torch.nn.functional.pad(words, (0, 3), value=5), lengths)[:, :10]
    real = torch.arange(10) < lengths[:, None]
    torch.testing.assert_close(found[real], longer[real])  # padding changes nothing
    assert not torch.allclose(found[real], model(words.flip(1), lengths)[real])


@pytest.mark.parametrize("pos", ["rope", "relpos"])  # alibi's distances do not tell which is before
def test_attention_of_ones_own_learns_it_with_variants_that_act_there(pos):
    torch.manual_seed(0)
    names: dict = {"batches": tagged(200, seed=0)}
    tagger, training, layer, rotary = blocks("Plain PyTorch")
    for block in (tagger, layer, rotary):
        exec(block, names)
    assert "Tagger(words=9, tags=2)" in training  # the same loop, with the other model
    names["Tagger"] = lambda **sizes: names["RotaryTagger"](**sizes, pos=pos)
    exec(training, names)
    assert right(names["model"]) > 0.9


def test_lightning_trains_the_same_model(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {"batches": tagged(300, seed=0)}
    exec(blocks("Plain PyTorch")[0], names)
    exec(blocks("Lightning")[0], names)
    assert right(names["model"].model) > 0.95


def test_torchaudio_gets_the_same_seconds_at_two_hops():
    pytest.importorskip("torchaudio")
    torch.manual_seed(0)
    names: dict = {"waves": torch.randn(2, 16_000), "samples": torch.tensor([16_000, 12_000])}
    definition, use = blocks("torchaudio")
    exec(definition, names)
    given: list[torch.Tensor] = []
    recognizer = names["Recognizer"]

    class Watched(recognizer):  # type: ignore[misc, valid-type]
        def __init__(self, tokens: int) -> None:
            super().__init__(tokens)
            self.position.register_forward_pre_hook(lambda _, args: given.append(args[1]))

    names["Recognizer"] = Watched
    exec(use, names)
    fine, coarse = given
    assert (fine.shape, coarse.shape) == ((2, 98), (2, 79))
    torch.testing.assert_close(fine[0, 5::5], coarse[0, 4::4])  # 0.05 s apart
    assert fine.isnan().sum(dim=1).tolist() == [0, 25]
    model = names["model"]
    assert all(one.grad.any() for one in model.parameters() if one.grad is not None)
    scores = [model.eval()(names["waves"], names["samples"], hop)[0].shape[1] for hop in (160, 200)]
    assert scores == [98, 79]


@pytest.fixture
def speechbrain():
    """Gone afterwards: its lazy modules fail where Hypothesis looks at all that is imported."""
    yield pytest.importorskip("speechbrain")
    for name in [name for name in sys.modules if name.split(".")[0] == "speechbrain"]:
        del sys.modules[name]


def test_speechbrain_builds_and_trains_it_from_a_recipe(speechbrain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (recipe,) = blocks("SpeechBrain", "yaml")
    (tmp_path / "hparams.yaml").write_text(recipe)
    features, clicks = 0.1 * torch.randn(64, 40, 64), torch.randint(5, (64,))
    features[torch.arange(64), 4 + 6 * clicks] += 1.0
    relative = torch.where(torch.arange(64) < 32, 1.0, 0.8)
    data = torch.utils.data.TensorDataset(features, relative, clicks)
    names: dict = {"loader": torch.utils.data.DataLoader(data, batch_size=8)}
    torch.manual_seed(0)
    exec(blocks("SpeechBrain")[0], names)
    torch.manual_seed(0)
    fresh, trained = names["load_hyperpyyaml"](recipe)["modules"], names["brain"].modules
    for part in ("encoder", "output"):
        pairs = zip(fresh[part].parameters(), trained[part].parameters(), strict=True)
        assert all(not torch.equal(*pair) for pair in pairs)
    assert names["brain"].avg_train_loss < 2.0
    position = trained["position"].train()
    assert type(position) is Positions
    assert (position.pos, position.options["frequency_scale"]) == ("cape", 30.0)
    content, seconds = torch.zeros(1, 40, 64), names["frame_times"]([40], 0.01)
    first, second = (position(content, seconds)[0] for _ in range(2))
    assert not torch.equal(first, second)  # it augments


def test_transformers_knows_the_names_trains_saves_and_loads(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("timm")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {"pixels": torch.randn(2, 3, 32, 48), "labels": torch.tensor([1, 2])}
    (block,) = blocks("transformers")
    exec(block, names)
    model = names["model"]
    inside = type(model.timm_model)
    assert inside.__module__ == "cape_plugins.timm.vision_transformer"
    assert all(parameter.grad is not None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained("moved")
    again = type(names["again"]).from_pretrained("moved")
    pixels = names["pixels"]
    assert torch.equal(again.eval()(pixels).logits, model.eval()(pixels).logits)
    assert not torch.equal(again.train()(pixels).logits, model.eval()(pixels).logits)
