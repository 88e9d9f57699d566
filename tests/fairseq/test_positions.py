"""What cape_transformer does with positions, in training and in evaluation."""

import pytest
import torch

pytest.importorskip("fairseq")

from cape_plugins.variants import names

BOS, PAD, EOS = 0, 1, 2
VARIANTS = names(1)
SOURCE = torch.tensor([[5, 6, 7, EOS], [8, 9, 5, EOS], [4, 4, 7, EOS]])
TARGET = torch.tensor([[EOS, 10, 11, 12, 13], [EOS, 14, 15, 16, 17], [EOS, 9, 8, 7, 6]])


def forward(model, source=SOURCE, target=TARGET):
    return model(source, None, target)[0]


def test_evaluation_places_source_at_multiples_of_its_scale_and_target_at_integers(
    build, seen_positions
):
    forward(build("cape", source_scale=1.25))
    source, target = seen_positions
    torch.testing.assert_close(source, 1.25 * torch.arange(5.0).expand(3, 5))  # BOS and 4 tokens
    torch.testing.assert_close(target, torch.arange(5.0).expand(3, 5))


def test_source_scale_is_for_cape_only(build, seen_positions):
    with pytest.raises(ValueError, match=r"--source-scale = 1\.25 is for cape"):
        build("sinpos", source_scale=1.25)
    forward(build("sinpos"))
    torch.testing.assert_close(seen_positions[0], torch.arange(4.0).expand(3, 4))


def test_source_and_target_share_global_shift_and_scale(build, seen_positions):
    model = build("cape", train=True, max_local_shift=0.0, max_global_scale=2.0, source_scale=1.25)
    forward(model)
    source, target = seen_positions
    shift_times_scale = target[:, 0]
    scale = target[:, 1] - target[:, 0]
    assert scale.unique().numel() == 3  # one per sentence pair
    assert shift_times_scale.unique().numel() == 3
    expected = shift_times_scale[:, None] + scale[:, None] * 1.25 * torch.arange(5.0)
    torch.testing.assert_close(source, expected)


def test_local_shifts_are_independent_in_source_and_target(build, seen_positions):
    model = build("cape", train=True, max_global_shift=0.0, max_local_shift=0.5, source_scale=1.0)
    forward(model)
    source, target = (positions - torch.arange(5.0) for positions in seen_positions)
    assert source.abs().max() <= 0.5
    assert target.abs().max() <= 0.5
    assert source.unique().numel() == target.unique().numel() == 15  # one per token
    assert not torch.isin(source, target).any()


def test_each_training_step_draws_anew(build, seen_positions):
    model = build("cape", train=True)
    forward(model)
    forward(model)
    assert (seen_positions[0][:, 0] != seen_positions[2][:, 0]).all()


def test_training_is_reproducible_from_the_seed(build):
    model = build("cape", train=True)
    torch.manual_seed(7)
    first = forward(model)
    torch.manual_seed(7)
    torch.testing.assert_close(forward(model), first, rtol=0, atol=0)


def test_a_draw_does_not_outlive_its_step(build, seen_positions):
    model = build("cape", train=True)
    forward(model)
    forward(model.eval())
    torch.testing.assert_close(seen_positions[3], torch.arange(5.0).expand(3, 5))


@pytest.mark.parametrize("pos", VARIANTS)
def test_evaluation_is_deterministic(build, pos):
    model = build(pos)
    torch.testing.assert_close(forward(model), forward(model), rtol=0, atol=0)


@pytest.mark.parametrize("pos", VARIANTS)
def test_incremental_decoding_equals_full_decoding(build, pos):
    model = build(pos)
    encoder_out = model.encoder(SOURCE)
    full = model.decoder(TARGET, encoder_out=encoder_out)[0]
    state = {}
    for step in range(1, TARGET.shape[1] + 1):
        last = model.decoder(TARGET[:, :step], encoder_out=encoder_out, incremental_state=state)[0]
        torch.testing.assert_close(last[:, 0], full[:, step - 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pos", VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_sentence_gives_what_it_gives_alone(build, pos, side):
    model = build(pos)
    padding = torch.full((1, 3), PAD)
    alone = torch.tensor([[5, 6, EOS]])
    columns = (padding, alone) if side == "left" else (alone, padding)
    batch = torch.cat([torch.cat(columns, dim=1), torch.tensor([[4, 5, 6, 7, 8, EOS]])])
    target = TARGET[:1]
    torch.testing.assert_close(
        forward(model, batch, target.expand(2, -1))[:1],
        forward(model, alone, target),
        rtol=0,
        atol=1e-5,
    )


def test_variants_differ_in_weights_by_the_tables_of_positions_alone(build):
    weights = {pos: {n: p.shape for n, p in build(pos).named_parameters()} for pos in VARIANTS}
    learn_nothing = ("nopos", "sinpos", "rope", "cape_rope")
    assert all(weights[pos] == weights["cape"] for pos in learn_nothing)
    assert set(weights["abspos"]) - set(weights["cape"]) == {
        "encoder.embed_positions.embedding.table",
        "decoder.embed_positions.embedding.table",
    }
    assert set(weights["relpos"]) - set(weights["cape"]) == {
        f"{side}.layers.{layer}.self_attn.relative.keys"
        for side in ("encoder", "decoder")
        for layer in (0, 1)
    }
    assert set(weights["relpos_first"]) - set(weights["cape"]) == {
        f"{side}.layers.0.self_attn.relative.keys" for side in ("encoder", "decoder")
    }
    for pos in ("abspos", "relpos", "relpos_first"):
        assert weights[pos].items() >= weights["cape"].items()


def test_abspos_holds_bos_on_top_of_the_longest_source(build):
    model = build("abspos", source_bos="true", max_source_positions=4, max_target_positions=5)
    forward(model)
    assert model.max_positions() == (4, 5)
    with pytest.raises(ValueError, match="abspos has positions 0 … 4"):
        model.decoder(torch.full((1, 6), 5), encoder_out=model.encoder(SOURCE[:1]))


@pytest.mark.parametrize("pos", ["sinpos", "cape"])
def test_frequencies_are_neither_saved_nor_rounded_by_half(build, pos):
    model = build(pos)
    before = set(model.state_dict())
    assert not any("embed_positions" in name for name in before)
    tokens = torch.full((1, 3000), 5)
    model.decoder.current.show(torch.arange(3000.0)[None])
    wide = model.decoder.embed_positions(tokens)
    model.bfloat16()
    narrow = model.decoder.embed_positions(tokens)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow, wide.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("pos", VARIANTS)
def test_half_precision_trains(build, pos):
    model = build(pos, train=True).bfloat16()
    out = forward(model)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_all_parameters_get_a_gradient(build):
    # fairseq 0.12.2 keeps unused copies of the encoder's weights, which DDP stumbles over
    for pos in VARIANTS:
        model = build(pos, train=True)
        forward(model).sum().backward()
        assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("pos", VARIANTS)
def test_activation_checkpointing_gives_the_same_gradients(build, pos):
    gradients = []
    for checkpoint in (False, True):
        model = build(pos, train=True, checkpoint_activations=checkpoint)
        torch.manual_seed(3)
        forward(model).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        # torch takes another kernel of attention where nothing needs a gradient
        torch.testing.assert_close(plain, recomputed, rtol=1e-4, atol=1e-4)
