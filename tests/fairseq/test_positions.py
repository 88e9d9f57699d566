"""What cape_transformer does with positions, in training and in evaluation."""

import pytest
import torch

from cape_plugins.variants import get, names
from cape_support import Made

BOS, PAD, EOS = 0, 1, 2
SOURCE = torch.tensor([[5, 6, 7, EOS], [8, 9, 5, EOS], [4, 4, 7, EOS]])
TARGET = torch.tensor([[EOS, 10, 11, 12, 13], [EOS, 14, 15, 16, 17], [EOS, 9, 8, 7, 6]])


def forward(model, source=SOURCE, target=TARGET):
    return model(source, None, target)[0]


@pytest.mark.parametrize(("pos", "scale", "columns"), [("cape", 1.25, 5), ("sinpos", 1.0, 4)])
def test_evaluation_places_source_at_multiples_of_its_scale_and_target_at_integers(
    build, seen_positions, pos, scale, columns
):
    model = build(pos).train()
    forward(model)  # whose draw does not outlive it
    forward(model.eval())
    source, target = seen_positions[2:]
    torch.testing.assert_close(source, scale * torch.arange(float(columns)).expand(3, columns))
    torch.testing.assert_close(target, torch.arange(5.0).expand(3, 5))


def test_source_and_target_share_global_shift_and_scale(build, seen_positions):
    model = build("cape", train=True, max_local_shift=0.0, max_global_scale=2.0, source_scale=1.25)
    forward(model)
    source, target = seen_positions
    first, scale = target[:, :1], target[:, 1:2] - target[:, :1]
    assert scale.unique().numel() == first.unique().numel() == 3  # one per sentence pair
    torch.testing.assert_close(source, first + scale * 1.25 * torch.arange(5.0))


def test_the_draw_of_a_sentence_pair_moves_with_it_when_the_source_is_reordered(build):
    model, order = build("cape", train=True, max_local_shift=0.0), torch.tensor([2, 0, 1])
    out = model.encoder(SOURCE)
    expected = model.decoder(TARGET, out)[0][order]
    moved = model.encoder.reorder_encoder_out(out, order)
    torch.testing.assert_close(model.decoder(TARGET[order], moved)[0], expected)


def test_local_shifts_are_independent_in_source_and_target(build, seen_positions):
    model = build("cape", train=True, max_global_shift=0.0, max_local_shift=0.5, source_scale=1.0)
    forward(model)
    source, target = (positions - torch.arange(5.0) for positions in seen_positions)
    assert source.abs().max() <= 0.5
    assert target.abs().max() <= 0.5
    assert source.unique().numel() == target.unique().numel() == 15  # one per token
    assert not torch.isin(source, target).any()


@pytest.mark.parametrize(("scale", "most"), [(1.25, 0.5), (1.0, 0.5), (0.8, 0.4)])
def test_the_sources_local_shift_is_the_targets_and_less_where_tokens_are_nearer(
    build, seen_positions, scale, most
):
    """Section 3.3 draws both alike; nearer tokens must not change places."""
    model = build("cape", train=True, max_global_shift=0.0, source_scale=scale)
    for _ in range(30):
        forward(model)
    source = torch.stack(seen_positions[::2]) - scale * torch.arange(5.0)
    target = torch.stack(seen_positions[1::2]) - torch.arange(5.0)
    assert 0.95 * most < source.abs().max() <= most + 1e-6
    assert 0.475 < target.abs().max() <= 0.5 + 1e-6


@pytest.mark.parametrize("pos", ["relpos", "cape_alibi"])
def test_step_by_step_decoding_equals_full_decoding(build, pos):
    # relpos decodes beyond its context
    options = {"relpos_context": 2} if "relpos_context" in get(pos, 1).options(1) else {}
    model, target = build(pos, **options), TARGET[:2]
    # two hypotheses of a sentence, which change places in the end
    encoder_out = model.encoder(SOURCE[:1].expand(2, -1))
    full = model.decoder(target, encoder_out=encoder_out)[0]
    order, state = torch.tensor([0, 1]), {}
    for step in range(1, 6):
        if step == 4:
            order = torch.tensor([1, 0])
            model.decoder.reorder_incremental_state_scripting(state, order)
        last = model.decoder(target[order, :step], encoder_out, incremental_state=state)[0]
        torch.testing.assert_close(last[:, 0], full[order, step - 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pos", ["relpos", "cape_alibi", "cape_rope", "random", "fire"])
def test_a_step_of_decoding_makes_nothing_as_large_as_tokens_squared(build, pos):
    asked = {"relpos_context": 4} if "relpos_context" in get(pos, 1).options(1) else {}
    model, tokens = build(pos, max_target_positions=300, **asked), torch.full((1, 200), 5)
    encoder_out, state = model.encoder(SOURCE[:1]), {}
    for step in range(1, 200):
        model.decoder(tokens[:, :step], encoder_out, incremental_state=state)
    with Made() as made:
        model.decoder(tokens, encoder_out, incremental_state=state)
    assert made.largest <= 200 * 64  # 32 numbers a key, as FIRE has


@pytest.mark.parametrize("pos", ["cape", "relpos"])
def test_a_padded_sentence_gives_what_it_gives_alone(build, pos):
    model = build(pos)
    alone, padding, target = [5, 6, EOS], [PAD, PAD, PAD], TARGET[:1]
    expected = forward(model, torch.tensor([alone]), target)
    for padded in (padding + alone, alone + padding):
        batch = torch.tensor([padded, [4, 5, 6, 7, 8, EOS]])
        found = forward(model, batch, target.expand(2, -1))[:1]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_variants_differ_in_weights_by_the_tables_of_positions_alone(build):
    ours = ("abspos", "relpos", "relpos_first", "cape", "nopos", "sinpos", "rope", "alibi")
    weights = {pos: {n: p.shape for n, p in build(pos).named_parameters()} for pos in ours}
    sides = ("encoder", "decoder")
    keys = {f"{side}.layers.{i}.self_attn.positional.keys" for side in sides for i in (0, 1)}
    more = {
        "abspos": {f"{side}.positions.added.table" for side in sides},
        "relpos": keys,
        "relpos_first": {name for name in keys if ".0." in name},
    }
    for pos in ours:
        assert set(weights[pos]) - set(weights["cape"]) == more.get(pos, set())
        assert weights[pos].items() >= weights["cape"].items()


def test_abspos_holds_bos_on_top_of_the_longest_source(build):
    model = build("abspos", source_bos="true", max_source_positions=4, max_target_positions=5)
    forward(model)
    assert model.max_positions() == (4, 5)
    with pytest.raises(ValueError, match="abspos"):
        model.decoder(torch.full((1, 6), 5), encoder_out=model.encoder(SOURCE[:1]))


@pytest.mark.parametrize("pos", ["sinpos", "cape"])
def test_frequencies_are_neither_saved_nor_rounded_by_half(build, pos):
    model = build(pos)
    numbers = [n for n, x in model.state_dict().items() if "position" in n and x.numel() > 1]
    assert numbers == []
    positions = torch.arange(3000.0)[None]
    wide = model.decoder.with_positions(positions, None, None).embed_positions()
    narrow = model.bfloat16().decoder.with_positions(positions, None, None).embed_positions()
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(narrow, wide.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("pos", names(1))
def test_all_parameters_get_a_gradient_in_half_precision(build, build_lm, pos):
    # fairseq 0.12.2 keeps unused copies of the encoder's weights, which DDP stumbles over
    model = build(pos, train=True).bfloat16()
    language_model = build_lm(pos, train=True).bfloat16()
    for out in (forward(model), language_model(TARGET)[0]):
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
    parameters = [*model.named_parameters(), *language_model.named_parameters()]
    assert [n for n, p in parameters if p.grad is None] == []


PADDED_SOURCE = torch.tensor([[PAD, 5, 6, EOS], [8, 9, 5, EOS]])
PADDED_TARGET = torch.tensor([[EOS, 10, 11], [EOS, 14, PAD]])
NAN = float("nan")


def test_random_evaluation_spreads_the_source_and_counts_the_target(build, seen_positions):
    model = build("random", random_range=100.0)
    model(PADDED_SOURCE, None, PADDED_TARGET)
    source, target = seen_positions
    spread, counted = [[NAN, 25, 50, 75], [20, 40, 60, 80]], [[0.0, 1, 2], [0, 1, NAN]]
    torch.testing.assert_close(source, torch.tensor(spread), equal_nan=True)
    torch.testing.assert_close(target, torch.tensor(counted), equal_nan=True)
