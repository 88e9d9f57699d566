"""docs/other-doors.md: each example is run as it stands there, on batches made here."""

import functools
import math
import re
import sys

import pytest
import torch
from torch import nn

import cape_plugins
import cape_support
from cape_plugins import Positions
from cape_plugins.variants import names
from cape_support import ROOT

PAGE = (ROOT / "docs" / "other-doors.md").read_text()
PLAIN, OWN = "Plain PyTorch", "Attention of your own: rope, alibi, relpos"
CACHE, CAPE1D = "A decoder with a cache", "Coming from gcambara/cape"
ROTARY = "Coming from rotary-embedding-torch or x-transformers"
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.S | re.M))


def blocks(section: str, language: str = "python") -> list[str]:
    return cape_support.blocks(SECTIONS[section], language)


def run(section: str, language: str = "python", **given) -> dict:
    """The names that a section's blocks make."""
    for block in blocks(section, language):
        exec(block, given)
    return given


#: names that the first section's lines make, and what each forward does
ONCE, EACH_TIME = blocks(PLAIN)


def plain(content: torch.Tensor, lengths: torch.Tensor, **names) -> torch.Tensor:
    """An encoder of PyTorch, around the page's lines."""
    exec(EACH_TIME, names | {"content": content, "lengths": lengths}, found := {})
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return layer(found["content"], src_key_padding_mask=found["padding"])


def first_names() -> dict:
    exec(ONCE, names := {})
    return names


def asked(pos: str) -> dict:
    """Values of the options that have no default."""
    values = dict(max_global_shift=5.0, max_local_shift=0.5, random_range=256.0)
    values |= dict(relpos_context=16.0, abspos_context=64.0, pose_range=256.0)
    taken = cape_plugins.variants.get(pos, 1).options(1)
    return {name: value for name, value in values.items() if name in taken}


@pytest.mark.parametrize("name", ["plain", *(pos for pos in names(1) if pos != "nopos")])
def test_plain_pytorch_and_attention_of_ones_own_take_every_variant(name):
    given = first_names()
    if name == "plain":
        given["position"].eval()
        model = functools.partial(plain, **given)
    else:
        given = run(OWN, **given)
        model = given["OwnAttention"](name, **asked(name)).eval()
        assert {"rope", "alibi", "relpos"} <= given.keys()  # the page's instances
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    content, lengths = torch.randn(2, 10, 64), torch.tensor([10, 7])
    found, real = model(content, lengths), torch.arange(10) < lengths[:, None]
    longer = model(nn.functional.pad(content, (0, 0, 0, 3), value=5.0), lengths)[:, :10]
    torch.testing.assert_close(found[real], longer[real], rtol=1e-4, atol=1e-4)
    moved = model(content.roll(1, 1), lengths).roll(-1, 1)  # the order tells
    assert not torch.allclose(found[0], moved[0], atol=1e-4)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Content is multiplied by 8 where sinusoids are added, and errors are too."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-4)


def decoder(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The page's, with two heads of keys for four of queries, and content of seven tokens."""
    model = run(CACHE, **first_names())["Decoder"](name, **asked(name)).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model, torch.randn(2, 7, 64)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", names(1))
def test_the_decoder_of_the_page_gives_step_by_step_what_it_gives_at_once(name, training):
    model, content = decoder(name)
    model.train(training)  # it generates while it trains, as reinforcement learning does
    real = torch.ones(2, 1, 7, dtype=torch.bool)
    real[1, :, :2] = False  # padded on the left
    at_once, kept = model(content, [], real), []
    for some in (slice(0, 3), *(slice(t, t + 1) for t in range(3, 7))):
        step = model(content[:, some], kept, real[..., : some.stop])
        close(step, at_once[:, some])
    alone = model(content[1:, 2:], [])
    close(alone, at_once[1:, 2:])  # padding changes nothing
    prefix = model(content[:, :4], [], real[..., :4])
    close(prefix, at_once[:, :4])  # nor do later tokens


@pytest.mark.parametrize("name", names(1))
def test_the_decoder_of_the_page_takes_packed_sentences(name):
    model, content = decoder(name)
    where = torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0]])
    apart = torch.zeros(1, 7, 7, dtype=torch.bool)
    apart[:, :4, :4] = apart[:, 4:, 4:] = True
    packed, kept = model(content, [], apart, where), []
    close(packed[:, 4:], model(content[:, 4:], []))
    for t in range(7):
        now = slice(t, t + 1)
        step = model(
            content[:, now], kept, apart[:, now, : t + 1], where[:, now], where[:, : t + 1]
        )
        close(step, packed[:, now])


def test_training_moves_positions_as_far_as_gcambara_cape():
    position = run(CAPE1D)["position"]
    seconds = cape_plugins.frame_times([3] * 4000, 0.03)
    moved = position.augment(seconds, 4000)[..., 0]
    # (position + Δ + ε) · λ, each uniform in its bounds, λ in its logarithm
    assert 63 < moved.abs().max() < 1.1 * (60 + 0.03 + 0.015)
    apart = moved.diff() / 0.03
    assert 1.9 < apart.max() < 1.1 * 2
    assert 0 < apart.min() < 0.1  # the order stays
    # on a plane it is near, as the page says
    index = torch.arange(192)
    radius = 10 ** (index / 191)  # CAPE2d of cape/cape.py
    grid = cape_plugins.patch_grid(14, 14)
    phase = math.pi * grid @ torch.stack([radius * index.cos(), radius * index.sin()])
    theirs = torch.cat([phase.cos(), phase.sin()], dim=1)
    apart = (cape_plugins.sinusoid_2d(grid, 384) - theirs).abs().max().item()
    assert apart == pytest.approx(0.08, abs=0.005)


@pytest.fixture
def speechbrain():
    """Gone afterwards: its lazy modules fail where Hypothesis looks at all that is imported."""
    yield pytest.importorskip("speechbrain")
    for name in [name for name in sys.modules if name.split(".")[0] == "speechbrain"]:
        del sys.modules[name]


def test_speechbrain_builds_it_from_a_recipe_and_its_encoder_takes_it(speechbrain):
    from hyperpyyaml import load_hyperpyyaml
    from speechbrain.lobes.models.transformer.Transformer import TransformerEncoder

    names = run("SpeechBrain")
    (recipe,) = blocks("SpeechBrain", "yaml")
    position = load_hyperpyyaml(recipe)["position"].train()
    assert type(position) is Positions
    assert (position.pos, position.options["frequency_scale"]) == ("cape", 30.0)
    encoder = TransformerEncoder(num_layers=1, nhead=4, d_ffn=8, d_model=64, dropout=0.0)
    features, relative = torch.randn(2, 40, 64), torch.tensor([1.0, 0.8])
    first, second = (names["with_positions"](position, features, relative) for _ in range(2))
    assert not torch.equal(first[0], second[0])  # it augments
    content, padding = names["with_positions"](position.eval(), features, relative)
    assert padding.sum(dim=1).tolist() == [0, 8]
    changed = torch.cat([content[:, :32], torch.randn(2, 8, 64)], dim=1)
    found, other = (encoder(x, None, padding)[0] for x in (content, changed))
    torch.testing.assert_close(found[1, :32], other[1, :32])
    assert not torch.allclose(found[0, :32], other[0, :32])


def test_a_checkpoint_of_another_variant_leaves_the_model_as_it_was():
    kind = run(OWN, **first_names())["OwnAttention"]
    model, other = kind("rope"), kind("alibi")
    run("Checkpoints", model=model)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(ValueError, match="alibi"):
        model.load_state_dict(other.state_dict())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_transformers_knows_the_names_trains_saves_and_loads(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("timm")
    monkeypatch.chdir(tmp_path)
    names: dict = {"pixels": torch.randn(2, 3, 32, 48), "labels": torch.tensor([1, 2])}
    exec(*blocks("transformers"), names)
    model, pixels = names["model"], names["pixels"]
    assert type(model.timm_model).__module__ == "cape_plugins.timm.vision_transformer"
    assert all(parameter.grad is not None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained("moved")
    again = type(names["again"]).from_pretrained("moved")
    assert torch.equal(again.eval()(pixels).logits, model.eval()(pixels).logits)


def cape1d(lengths: tuple[int, ...], dim: int) -> torch.Tensor:
    """What gcambara/cape at d456950 adds in evaluation, by its formula in cape/cape.py."""
    waves = torch.zeros(len(lengths), max(lengths), dim)
    for sample, length in enumerate(lengths):
        seconds = 0.03 * (torch.arange(length) - (length - 1) / 2)
        phase = 30 * seconds[:, None] * 10_000 ** (-2 * torch.arange(dim // 2) / dim)
        waves[sample, :length] = torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1)
    return waves


def test_the_values_are_those_of_gcambara_cape():
    names, content = run(CAPE1D), torch.randn(2, 5, 512)
    names["position"].eval()
    found = names["as_cape1d"](content, torch.tensor([5, 3]))
    expected = content * math.sqrt(512) + cape1d((5, 3), 512)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # what that package printed for CAPE1d(8, normalize=True, freq_scale=30.0), three frames
    printed = [-0.78333, 0.62161, -0.089879, 0.99595, -0.0089999, 0.99996, -0.0009, 1.0]
    torch.testing.assert_close(cape1d((3,), 8)[0, 0], torch.tensor(printed))


def test_rotary_embedding_torch_and_ours_give_the_same_scores_as_the_page_says():
    package = pytest.importorskip("rotary_embedding_torch")
    rotary, names, (batch, tokens, heads) = package.RotaryEmbedding(dim=16), run(ROTARY), (2, 10, 4)
    content, lengths = torch.randn(batch, tokens, 64), torch.tensor([10, 7])
    weights = torch.randn(2, 64, 64) / 8
    query, key = ((content @ w.T).unflatten(2, (heads, 16)).transpose(1, 2) for w in weights)
    turned = [rotary.rotate_queries_or_keys(one) for one in (query, key)]
    expected = turned[0] @ turned[1].mT
    # with reordered projections ours
    ours = (content @ names["reordered"](w, heads).T for w in weights)
    ours = [one.unflatten(2, (heads, 16)).transpose(1, 2) for one in ours]
    position = Positions("rope", dim=64, heads=heads, layers=1)
    _, given = position(content, names["token_positions"]([tokens] * batch))
    found, other = position.attentions[0].embed_both(*ours, given)
    torch.testing.assert_close(found @ other.mT, expected)

    # by CAPE's positions it augments, and in evaluation centring changes nothing
    def scores() -> torch.Tensor:
        angles = rotary(names["augmented"](lengths, 10))[:, None]
        first, second = (package.apply_rotary_emb(angles, one) for one in (query, key))
        return first @ second.mT

    assert not torch.allclose(scores()[0], scores()[0])
    names["position"].eval()
    torch.testing.assert_close(scores()[0], expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores()[1, :, :7, :7], expected[1, :, :7, :7], rtol=1e-4, atol=1e-4)
