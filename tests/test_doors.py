"""docs/other-doors.md: each example is run as it stands there, on batches made here."""

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


def tagged(seed: int) -> tuple[torch.Tensor, ...]:
    """Words, lengths and tags, which tell whether the word before is odd: order matters."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 9, (32, 10), generator=generator)
    lengths = torch.randint(5, 11, (32,), generator=generator)
    tags = words.roll(1, 1) % 2
    tags[:, 0] = -100
    tags[torch.arange(10) >= lengths[:, None]] = -100
    return words, lengths, tags


def run(section: str, language: str = "python", **given) -> dict:
    """The names that a section's blocks make."""
    for block in blocks(section, language):
        exec(block, given)
    return given


class Tagger(nn.Module):
    """Words, an encoder of the page, and tags."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.words, self.encoder, self.out = nn.Embedding(9, 64), encoder, nn.Linear(64, 2)

    def forward(self, words, lengths):
        return self.out(self.encoder(self.words(words), lengths))


class Plain(nn.Module):
    """A model of the page's lines."""

    def __init__(self) -> None:
        super().__init__()
        once, self.each_time = blocks(PLAIN)
        self.names: dict = {}
        exec(once, self.names)
        self.position = self.names["position"]
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, content, lengths):
        names = {**self.names, "content": content, "lengths": lengths}
        exec(self.each_time, names)
        return self.layers(names["content"], src_key_padding_mask=names["padding"])


def test_plain_pytorch_learns_what_needs_positions():
    torch.manual_seed(0)
    model = Tagger(Plain())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for seed in range(1, 301):
        words, lengths, tags = tagged(seed)
        loss = nn.functional.cross_entropy(model(words, lengths).transpose(1, 2), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    words, lengths, tags = tagged(seed=0)
    guessed = model.eval()(words, lengths).argmax(dim=-1)
    assert (guessed == tags)[tags >= 0].float().mean() > 0.95


def asked(pos: str) -> dict:
    """Values of the options that have no default."""
    values = dict(max_global_shift=5.0, max_local_shift=0.5, random_range=256.0)
    values |= dict(relpos_context=16.0, abspos_context=64.0, pose_range=256.0)
    taken = cape_plugins.variants.get(pos, 1).options(1)
    return {name: value for name, value in values.items() if name in taken}


@pytest.mark.parametrize("name", [pos for pos in names(1) if pos != "nopos"])
def test_attention_of_ones_own_takes_every_variant(name):
    torch.manual_seed(0)
    own = run(OWN, **Plain().names)
    model, (words, lengths, _) = Tagger(own["OwnAttention"](name, **asked(name))).eval(), tagged(0)
    if name in ("rope", "relpos", "alibi"):
        Tagger(own[name])(words, lengths)  # the page's instances
    found = model(words, lengths)
    longer = model(nn.functional.pad(words, (0, 3), value=5), lengths)[:, :10]
    real = torch.arange(10) < lengths[:, None]
    torch.testing.assert_close(found[real], longer[real])  # padding changes nothing
    assert not torch.allclose(found[real], model(words.flip(1), lengths)[real])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Content is multiplied by 8 where sinusoids are added, and errors are too."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-4)


def decoder(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The page's, with two heads of keys for four of queries, and content of seven tokens."""
    model = run(CACHE, **Plain().names)["Decoder"](name, **asked(name)).eval()
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


def cape1d(content: torch.Tensor, frames: list[int]) -> torch.Tensor:
    """What gcambara/cape at d456950 gives in evaluation, by its formula in cape/cape.py.

    With ``normalize=True, freq_scale=30.0``, batch first, a hop of 0.03 s.
    """
    expected = content * math.sqrt(content.shape[2])
    for sample, length in enumerate(frames):
        for frame in range(length):
            seconds = 0.03 * (frame - (length - 1) / 2)
            for channel in range(content.shape[2]):
                phase = 30 * seconds * 10_000 ** (-2 * (channel // 2) / content.shape[2])
                wave = math.cos(phase) if channel % 2 else math.sin(phase)
                expected[sample, frame, channel] += wave
    return expected


def test_the_values_are_those_of_gcambara_cape():
    names = run(CAPE1D)
    names["position"].eval()
    content = torch.randn(2, 5, 512)
    found = names["as_cape1d"](content, torch.tensor([5, 3]))
    torch.testing.assert_close(found, cape1d(content, [5, 3]), rtol=1e-5, atol=1e-5)
    # what that package printed for CAPE1d(8, normalize=True, freq_scale=30.0), three frames
    printed = [-0.78333, 0.62161, -0.089879, 0.99595, -0.0089999, 0.99996, -0.0009, 1.0]
    torch.testing.assert_close(cape1d(torch.zeros(1, 3, 8), [3])[0, 0], torch.tensor(printed))


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


def test_reordered_projections_give_the_scores_of_rotary_embedding_torch():
    rotary = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding(dim=16)
    names, (batch, tokens, heads) = run(ROTARY), (2, 10, 4)
    content = torch.randn(batch, tokens, 64)
    projections = [nn.Linear(64, 64) for _ in range(3)]
    query, key, value = (
        one(content).unflatten(2, (heads, 16)).transpose(1, 2) for one in projections
    )
    turned = [rotary.rotate_queries_or_keys(one) for one in (query, key)]
    expected = nn.functional.scaled_dot_product_attention(*turned, value)
    for one in projections[:2]:
        for parameter in (one.weight, one.bias):
            parameter.data = names["reordered"](parameter.data, heads)
    query, key, value = (
        one(content).unflatten(2, (heads, 16)).transpose(1, 2) for one in projections
    )
    position = Positions("rope", dim=64, heads=heads, layers=1)
    _, given = position(content, names["token_positions"]([tokens] * batch))
    found, _ = position.attentions[0](query, key, value, given)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, nn.functional.scaled_dot_product_attention(query, key, value))


def test_rotary_embedding_torch_takes_capes_positions():
    package = pytest.importorskip("rotary_embedding_torch")
    names, rotary = run(ROTARY), package.RotaryEmbedding(dim=16)
    query, key = torch.randn(2, 2, 4, 10, 16)
    lengths = torch.tensor([10, 7])

    def turned() -> list[torch.Tensor]:
        angles = rotary(names["augmented"](lengths, 10))[:, None]
        return [package.apply_rotary_emb(angles, one) for one in (query, key)]

    assert not torch.allclose(turned()[0], turned()[0])  # it augments
    names["position"].eval()
    real = torch.arange(10) < lengths[:, None]
    scores, expected = (
        torch.einsum("bhid,bhjd->bijh", *pair)[real[:, :, None] & real[:, None]]
        for pair in (turned(), [rotary.rotate_queries_or_keys(one) for one in (query, key)])
    )
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)  # centring changes nothing


def test_the_rotation_and_the_slopes_are_those_of_x_transformers():
    """What version 2.31.10 printed: positions 0.5, 2.25 and 10 turn 1 … 8; slopes of six heads."""
    printed = [
        [-0.0813, 2.2346, 2.7963, 4.1449, 4.9699, 6.0249, 6.9960, 8.0035],
        [-2.1843, -0.4783, 2.0320, 4.5685, 4.8637, 6.1110, 6.9820, 8.0157],
        [0.2490, -2.2222, -1.7450, 4.6856, 4.3760, 6.4692, 6.9197, 8.0696],
    ]
    rope = Positions("rope", dim=8, layers=1)
    _, given = rope(torch.zeros(1, 3, 8), torch.tensor([[0.5, 2.25, 10.0]]))
    # what `reordered` does to rows is done here to the channels that they make
    halves = torch.arange(1.0, 9).unflatten(0, (-1, 2)).T.flatten().expand(1, 1, 3, 8)
    found = rope.attentions[0].embed(halves, given.queries)[0, 0]
    neighbours = found.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)
    torch.testing.assert_close(neighbours, torch.tensor(printed), rtol=0, atol=1e-4)

    alibi = Positions("alibi", dim=48, heads=6, layers=1)
    _, given = alibi(torch.zeros(1, 3, 48), torch.tensor([[0.0, 1.5, 4.0]]))
    bias = given.bias
    slopes = torch.tensor([0.25, 0.0625, 1 / 64, 1 / 256, 0.5, 0.125])
    torch.testing.assert_close(bias[0, :, 0], -slopes[:, None] * torch.tensor([0.0, 1.5, 4.0]))


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


#: around the page's YAML


def test_a_checkpoint_of_another_variant_leaves_the_model_as_it_was():
    kind = run(OWN, **Plain().names)["OwnAttention"]
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
