"""The encoder ``cape_transformer``, as ESPnet's own encoder tests look at theirs, and beyond."""

import math

import pytest
import torch

pytest.importorskip("espnet2")

from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import AsGiven
from cape_plugins.espnet.encoder import CapeTransformerEncoder
from cape_plugins.espnet.seconds import TooShortUttError
from cape_plugins.positions import frame_times
from cape_plugins.variants import get, names

VARIANTS = names(1)
FEATURES = 20


def make(**options) -> CapeTransformerEncoder:
    torch.manual_seed(0)
    sizes = dict(output_size=32, attention_heads=4, linear_units=64, num_blocks=2)
    quiet = dict(dropout_rate=0, attention_dropout_rate=0, conv_dropout_rate=0, layer_drop_rate=0)
    return CapeTransformerEncoder(FEATURES, **{**sizes, **quiet, **options})


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


# --- what ESPnet's tests of its encoders look at


@pytest.mark.parametrize("normalize_before", [True, False])
@pytest.mark.parametrize("pos", VARIANTS)
def test_forward_and_backward_reach_the_input_and_every_parameter(pos, normalize_before):
    encoder = make(pos=pos, normalize_before=normalize_before)
    features, lengths = batch(50, 44)
    features.requires_grad_()
    out, olens, states = encoder(features, lengths)
    assert out.shape == (2, 17, 32)
    assert olens.tolist() == [17, 15]
    assert states is None
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    assert features.grad.abs().sum() > 0
    silent = [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_output_size_is_the_number_of_channels():
    assert make(output_size=40).output_size() == 40


@pytest.mark.parametrize("frames", range(1, 12))
def test_one_output_frame_for_every_three_begun(frames):
    out, olens, _ = make().eval()(*batch(frames))
    assert out.shape[1] == olens.max() == math.ceil(frames / 3)
    assert out.isfinite().all()


def test_lengths_have_the_longest_utterance_fill_the_output():
    out, olens, _ = make().eval()(*batch(163, 120, 7))
    assert out.shape[1] == olens.max() == 55
    assert olens.tolist() == [55, 40, 3]


@pytest.mark.parametrize("pos", VARIANTS)
def test_a_padded_utterance_gives_the_result_it_gives_alone(pos):
    encoder = make(pos=pos).eval()
    features, lengths = batch(163, 120, 118, 2)
    out, olens, _ = encoder(features, lengths)
    for index, length in enumerate(lengths.tolist()):
        alone, alone_lens, _ = encoder(features[index, None, :length], lengths[index, None])
        assert alone_lens.item() == olens[index]
        torch.testing.assert_close(out[index, : olens[index]], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("garbage", [1e6, math.nan])
def test_what_lies_in_the_padding_does_not_matter(garbage):
    encoder = make().eval()
    features, lengths = batch(60, 40)
    clean, olens, _ = encoder(features, lengths)
    features[1, 40:] = garbage
    dirty, _, _ = encoder(features, lengths)
    torch.testing.assert_close(clean[1, : olens[1]], dirty[1, : olens[1]])
    assert dirty.isfinite().all()


def test_an_empty_utterance_disturbs_nothing():
    encoder = make()
    features, _ = batch(30, 30)
    out, olens, _ = encoder(features, torch.tensor([30, 0]))
    assert olens.tolist() == [10, 0]
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize(
    ("features", "lengths"),
    [(torch.zeros(2, 0, FEATURES), [0, 0]), (torch.zeros(1, 9, FEATURES), [0])],
    ids=["no frame", "padding only"],
)
def test_nothing_to_hear_is_what_espnets_decoding_calls_too_short(features, lengths):
    from espnet2.bin import asr_inference

    assert TooShortUttError is asr_inference.TooShortUttError
    with pytest.raises(TooShortUttError, match="no frame"):
        make()(features, torch.tensor(lengths))


class Recorded(torch.nn.Module):
    """What ESPnet's pictures of attention take: a model that is called with a batch."""

    def __init__(self, encoder: CapeTransformerEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, speech, speech_lengths):
        self.encoder(speech, speech_lengths)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("pos", VARIANTS)
def test_espnets_pictures_of_attention_show_the_encoders(pos, values):
    from espnet2.main_funcs.calculate_all_attentions import calculate_all_attentions

    encoder = make(pos=pos, relpos_values=values and pos.startswith("relpos")).eval()
    for module in encoder.modules():  # what is learned of positions counts
        if isinstance(module, PositionalAttention):
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter)
    features, lengths = batch(60, 40)
    found = calculate_all_attentions(
        Recorded(encoder), {"speech": features, "speech_lengths": lengths}
    )
    assert sorted(found) == ["encoder.layers.0.attention", "encoder.layers.1.attention"]
    for seen in found.values():
        assert [tuple(one.shape) for one in seen] == [(4, 20, 20), (4, 14, 14)]
        torch.testing.assert_close(seen[1].sum(dim=2), torch.ones(4, 14))
    # as they are used: the values they mix are the layer's output
    layer = encoder.layers[0].attention
    inside = []
    handle = layer.register_forward_pre_hook(lambda _, given: inside.append(given[0]))
    second = features[1:, :40], lengths[1:]
    encoder(*second)
    handle.remove()
    if not (values and pos.startswith("relpos")):
        value = layer.qkv(inside[0]).view(1, 14, 3, 4, 8)[:, :, 2].transpose(1, 2)
        mixed = found["encoder.layers.0.attention"][1] @ value
        used = layer.out(mixed.transpose(1, 2).reshape(1, 14, 32))
        outputs = []
        handle = layer.register_forward_hook(lambda _, given, output: outputs.append(output))
        encoder(*second)
        handle.remove()
        torch.testing.assert_close(outputs[0], used)


def test_attention_weights_are_not_laid_out_unless_they_are_asked_for():
    encoder = make().eval()
    encoder(*batch(60))
    assert encoder.layers[0].attention.attn is None


def test_espnet_may_pass_states_and_ctc():
    encoder = make().eval()
    features, lengths = batch(30)
    plain = encoder(features, lengths)[0]
    assert encoder(features, lengths, None, ctc=torch.nn.Identity())[0].equal(plain)


# --- training and evaluation


@pytest.mark.parametrize("pos", VARIANTS)
def test_evaluation_is_deterministic(pos):
    encoder = make(pos=pos, dropout_rate=0.3, conv_dropout_rate=0.3).eval()
    inputs = batch(40, 30)
    assert encoder(*inputs)[0].equal(encoder(*inputs)[0])


@pytest.mark.parametrize("pos", VARIANTS)
def test_without_dropout_only_those_that_augment_are_random_in_training(pos):
    encoder = make(pos=pos).train()
    inputs = batch(40, 30)
    same = encoder(*inputs)[0].equal(encoder(*inputs)[0])
    assert same is (get(pos).augment is AsGiven)


def test_without_shifts_and_scale_cape_trains_as_it_evaluates():
    encoder = make(max_global_shift=0, max_local_shift=0, max_global_scale=1)
    inputs = batch(40, 30)
    torch.testing.assert_close(encoder.train()(*inputs)[0], encoder.eval()(*inputs)[0])


@pytest.mark.parametrize(
    "rates",
    [
        {"dropout_rate": 0.5},
        {"attention_dropout_rate": 0.5},
        {"conv_dropout_rate": 0.5},
        {"positional_dropout_rate": 0.5},
    ],
)
def test_each_dropout_acts_in_training_only(rates):
    encoder = make(pos="sinpos", **rates)
    inputs = batch(40)
    assert not encoder.train()(*inputs)[0].equal(encoder(*inputs)[0])
    assert encoder.eval()(*inputs)[0].equal(encoder(*inputs)[0])


# --- positions are seconds


@pytest.mark.parametrize("pos", VARIANTS)
def test_default_times_are_multiples_of_the_frame_shift(pos):
    encoder = make(pos=pos, frame_shift=0.016).eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.016, 50, dtype=torch.float64)
    assert encoder(features, lengths, times=times)[0].equal(encoder(features, lengths)[0])


@pytest.mark.parametrize("pos", VARIANTS)
def test_starting_the_clock_later_changes_nothing_but_for_absolute_positions(pos):
    moves = pos in ("sinpos", "abspos")
    encoder = make(pos=pos).eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.01, 50)
    now, olens, _ = encoder(features, lengths, times=times)
    later = encoder(features, lengths, times=times + 100.0)[0]
    real = torch.arange(now.shape[1]) < olens[:, None]
    assert torch.allclose(now[real], later[real], atol=1e-3) is not moves


@pytest.mark.parametrize("pos", ["sinpos", "cape"])
def test_the_same_seconds_at_another_frame_shift_get_the_same_embedding(pos):
    at_10_ms, at_20_ms = make(pos=pos).eval(), make(pos=pos, frame_shift=0.02).eval()
    # 0.6 s: 61 frames, 21 after the convolution; 31 and 11 at twice the shift
    fine = frame_times([61], 0.01)[:, ::3]
    coarse = frame_times([31], 0.02)[:, ::3]
    fine = at_10_ms.position(torch.zeros(1, 21, 32), fine)
    coarse = at_20_ms.position(torch.zeros(1, 11, 32), coarse)
    torch.testing.assert_close(fine[:, ::2], coarse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pos", ["rope", "cape_rope"])
def test_the_same_seconds_at_another_frame_shift_turn_by_the_same_angles(pos):
    features, _ = batch(61)
    turned = []
    for every, shift in ((1, 0.01), (2, 0.02)):
        encoder = make(pos=pos, frame_shift=shift).eval()
        encoder.layers[0].register_forward_pre_hook(lambda _, given: turned.append(given[3]))
        encoder(features[:, ::every], torch.tensor([len(features[0, ::every])]))
    fine, coarse = turned
    torch.testing.assert_close(fine[:, ::2], coarse, rtol=0, atol=1e-5)
    phases = torch.arange(11)[:, None] * 0.06 * 30 * 10_000 ** (-torch.arange(4) / 4)
    if pos == "cape_rope":
        phases = phases - phases.mean(dim=0)  # centred, which no score sees
    torch.testing.assert_close(coarse[0, :, :4], phases.cos(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pos", ["rope", "cape_rope"])
def test_heads_of_an_odd_number_of_channels_are_refused(pos):
    with pytest.raises(ValueError, match="heads of a multiple of 2 channels, got 3: change the"):
        make(pos=pos, output_size=12)


def test_a_frame_in_padding_may_have_no_time():
    encoder = make().eval()
    features, lengths = batch(50, 31)
    times = (torch.arange(50) * 0.01).expand(2, 50).clone()
    with_times = encoder(features, lengths, times=times)[0]
    times[1, 31:] = math.nan
    assert encoder(features, lengths, times=times)[0].equal(with_times)


def test_abspos_counts_frames_and_begins_again_beyond_its_table():
    encoder = make(pos="abspos", abspos_context=0.3)  # 10 frames of 30 ms
    assert encoder.position.table.shape == (10, 32)
    assert encoder.position.table.abs().max() <= 0.1
    content = torch.zeros(1, 25, 32)
    times = frame_times([75], 0.01)
    positions = times[:, ::3] / encoder.position_unit
    added = encoder.position(content, positions)[0]
    assert added[:10].equal(encoder.position.table)
    assert added[20:].equal(encoder.position.table[:5])


def test_the_model_is_the_papers_unless_told_otherwise():
    with torch.device("meta"):  # 36 layers, 255 million parameters
        encoder = CapeTransformerEncoder(80)
    assert len(encoder.layers) == 36
    assert encoder.output_size() == 768
    assert encoder.front.conv.weight.shape == (2 * 768, 80, 7)
    assert encoder.front.conv.stride == (3,)
    layer = encoder.layers[0]
    assert layer.attention.heads == 4
    assert layer.feed_forward[0].out_features == 3072
    assert [m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)][:3] == [0.3, 0, 0.1]
    assert layer.attention.dropout_rate == encoder.layer_drop_rate == 0.1


def test_the_defaults_are_the_papers():
    encoder = CapeTransformerEncoder(80, num_blocks=1)
    assert encoder.position.augmentation.max_global_shift == 30.0
    assert encoder.position.augmentation.max_local_shift == pytest.approx(0.015)
    assert encoder.position.augmentation.max_global_scale == 1.1
    assert encoder.position.frequency_scale == 30.0
    assert CapeTransformerEncoder(80, num_blocks=1, pos="abspos").position.max_length == 460


@pytest.mark.parametrize(
    ("pos", "shift", "seconds", "warned"),
    [
        ("cape", 5.0, 21, True),
        ("cape", 5.0, 19, False),
        ("cape", 0.0, 21, False),
        ("sinpos", 30.0, 200, False),
    ],
)
def test_recordings_far_longer_than_the_global_shift_covers_are_warned_of_once(
    pos, shift, seconds, warned, caplog
):
    encoder = make(pos=pos, max_global_shift=shift, num_blocks=1).eval()
    for _ in range(2):
        encoder(*batch(100 * seconds))
    told = [record.message for record in caplog.records]
    assert len(told) == warned
    if warned:
        assert "a recording of 21 s reaches ± 10 s" in told[0]
        assert "max_global_shift: 5: train with max_global_shift ≥ 10" in told[0]


@pytest.mark.parametrize(
    ("pos", "shift", "warned"),
    [("cape", 0.02, True), ("cape", 0.015, False), ("cape", None, False), ("nopos", None, False)],
)
def test_a_local_shift_beyond_half_a_frame_is_warned_of(pos, shift, warned, caplog):
    make(pos=pos, max_local_shift=shift)
    told = [record.message for record in caplog.records]
    assert len(told) == warned
    if warned:
        assert "max_local_shift: 0.02 s is more than half of the 0.03 s" in told[0]


def test_the_local_shift_follows_the_frame_shift_unless_given():
    assert make(frame_shift=0.02).position.augmentation.max_local_shift == pytest.approx(0.03)
    given = make(frame_shift=0.02, max_local_shift=0.01)
    assert given.position.augmentation.max_local_shift == 0.01


# --- precision


@pytest.mark.parametrize("pos", ["sinpos", "cape"])
@pytest.mark.parametrize("given", [False, True], ids=["default times", "times"])
def test_an_hour_of_frames_is_embedded_within_2e_6_end_to_end(pos, given):
    encoder = make(pos=pos).eval()
    encoder.layers = torch.nn.ModuleList()  # attention over 120 000 frames is not the question
    seen = []
    add = encoder.position.add
    encoder.position.add = lambda content, positions: seen.append(positions) or content
    features, lengths = torch.zeros(1, 360_000, FEATURES), torch.tensor([360_000])
    times = frame_times(lengths, 0.01, dtype=torch.float64) if given else None
    encoder(features, lengths, times=times)
    embedded = add(torch.zeros(1, 120_000, 32), seen[0])[0]
    exact = torch.arange(120_000, dtype=torch.float64) * 3 / 100
    if pos == "cape":
        exact = exact - 119_999 * 3 / 200
    frequencies = 30 * 10_000 ** (-2 * torch.arange(16, dtype=torch.float64) / 32)
    phases = exact[:, None] * frequencies
    expected = torch.cat([phases.cos(), phases.sin()], dim=1)
    assert (embedded.double() - expected).abs().max() < 2e-6


@pytest.mark.parametrize("pos", VARIANTS)
def test_under_autocast_the_result_stays_close_even_an_hour_into_the_recording(pos):
    encoder = make(pos=pos).eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.01, 50) + 3600
    exact = encoder(features, lengths, times=times)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _, _ = encoder(features, lengths, times=times)
        out.sum().backward()
    assert (out.float() - exact).abs().max() < 0.1


def test_trains_in_bfloat16():
    encoder = make().bfloat16()
    features, lengths = batch(50, 31)
    out, _, _ = encoder(features.bfloat16(), lengths)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("pos", ["relpos", "cape"])
def test_training_compiles_into_one_graph_so_nothing_waits_for_the_device(pos):
    torch.compiler.reset()
    encoder = make(pos=pos, num_blocks=1, layer_drop_rate=0.5)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    inputs = batch(30, 20)
    compiled(*inputs)[0].sum().backward()
    compiled.eval(), encoder.eval()
    torch.testing.assert_close(compiled(*inputs)[0], encoder(*inputs)[0])


# --- checkpoints


@pytest.mark.parametrize("pos", VARIANTS)
def test_a_checkpoint_restores_every_parameter(pos):
    """ESPnet loads with strict=False, so a key that changed would be lost in silence."""
    saved = make(pos=pos).eval()
    torch.manual_seed(5)
    restored = CapeTransformerEncoder(
        FEATURES, output_size=32, linear_units=64, num_blocks=2, pos=pos
    ).eval()
    assert set(saved.state_dict()) == set(restored.state_dict())
    restored.load_state_dict(saved.state_dict())
    inputs = batch(50, 31)
    assert restored(*inputs)[0].equal(saved(*inputs)[0])


def test_sinpos_and_cape_can_exchange_checkpoints():
    """Nothing of theirs is learned: all but the mark of a sinpos model can train on as cape."""
    assert set(make(pos="sinpos").state_dict()) == set(make(pos="cape").state_dict())


# --- mistakes


@pytest.mark.parametrize("pos", ["nopos", "relpos", "cape"])
@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("output_size", 0, "≥ 1"),
        ("output_size", 30, "divisible by attention_heads=4"),
        ("output_size", 32.0, "integer"),
        ("attention_heads", -1, "≥ 1"),
        ("linear_units", "64", "integer"),
        ("num_blocks", True, "integer"),
        ("dropout_rate", 1.0, r"\[0, 1\)"),
        ("positional_dropout_rate", -0.1, r"\[0, 1\)"),
        ("attention_dropout_rate", "a lot", r"\[0, 1\)"),
        ("conv_dropout_rate", math.nan, r"\[0, 1\)"),
        ("layer_drop_rate", 1, r"\[0, 1\)"),
        ("interctc_layer_idx", [0, 1], "from 1 to 1"),
        ("interctc_layer_idx", [1, 2], "from 1 to 1"),
        ("interctc_layer_idx", [True], "from 1 to 1"),
        ("interctc_layer_idx", 1, "list"),
        ("interctc_layer_idx", "1", "list"),
        ("interctc_layer_idx", None, "list"),
        ("interctc_use_conditioning", 1, "true or false"),
        ("normalize_before", "yes", "true or false"),
        ("max_global_shift", -1.0, "≥ 0"),
        ("max_local_shift", -0.01, "≥ 0"),
        ("max_local_shift", [0.01, 0.02], "seconds or null"),
        ("max_global_scale", 0.9, "≥ 1"),
        ("abspos_context", 0.01, "≥ 0.03"),
        ("abspos_context", None, "≥ 0.03"),
        ("relpos_context", 0.02, "≥ 0.03"),
        ("relpos_context", math.inf, "≥ 0.03"),
        ("relpos_values", "keys", "true or false"),
        ("frame_shift", 0, "> 0"),
        ("frame_shift", None, "> 0"),
    ],
)
def test_a_bad_value_is_refused_whatever_pos_is(pos, option, value, allowed):
    with pytest.raises(ValueError, match=allowed) as error:
        make(pos=pos, **{option: value})
    assert option in str(error.value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", ["bogus", "CAPE", None, 3, ["cape"]])
def test_an_unknown_pos_is_refused_with_the_list_of_known(value):
    with pytest.raises(
        ValueError, match="nopos, abspos, sinpos, cape, relpos, relpos_first, rope, cape_rope"
    ) as error:
        make(pos=value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("pos", "option", "value", "takers"),
    [
        ("nopos", "max_global_shift", 5.0, "cape"),
        ("sinpos", "max_global_scale", 2.0, "cape"),
        ("relpos", "max_local_shift", 0.01, "cape"),
        ("cape", "abspos_context", 20.0, "abspos"),
        ("abspos", "relpos_context", 6.0, "relpos, relpos_first"),
        ("cape", "relpos_values", True, "relpos, relpos_first"),
        ("rope", "max_global_scale", 2.0, "cape, cape_rope"),
    ],
)
def test_an_option_that_pos_does_not_take_is_refused_in_training(pos, option, value, takers):
    model = make(pos=pos, **{option: value}).eval()  # as models from before this check load
    with pytest.raises(ValueError, match=takers) as error:
        model.train()
    assert f"encoder_conf {option}" in str(error.value)
    assert repr(value) in str(error.value)
    assert pos in str(error.value)


@pytest.mark.parametrize("pos", VARIANTS)
def test_every_pos_takes_the_defaults_that_espnet_writes_into_configs(pos):
    from espnet2.utils.get_default_kwargs import get_default_kwargs

    written = get_default_kwargs(CapeTransformerEncoder)
    assert {"max_global_shift", "abspos_context", "relpos_context"} < set(written)
    make(**{**written, "pos": pos, "num_blocks": 1})


def test_a_misspelled_option_is_refused():
    with pytest.raises(TypeError, match="max_global_shfit"):
        make(max_global_shfit=1.0)


def test_whole_numbers_pass_for_real_ones():
    """YAML writes 30, not 30.0."""
    make(max_global_shift=30, max_local_shift=0, max_global_scale=1, dropout_rate=0)


def test_inputs_that_do_not_fit_are_refused():
    encoder = make()
    features, lengths = batch(50, 31)
    with pytest.raises(ValueError, match=r"features must be \(B, T, 20\)"):
        encoder(features[..., :19], lengths)
    with pytest.raises(ValueError, match=r"ilens must be \(2,\)"):
        encoder(features, lengths[:1])
    with pytest.raises(ValueError, match=r"times must be \(2, 50\)"):
        encoder(features, lengths, times=torch.zeros(2, 17))
    with pytest.raises(ValueError, match=r"ilens must lie in \[0, T=50\], got 51 at index \[0\]"):
        encoder(features, lengths + torch.tensor([1, 0]), times=torch.zeros(2, 50))
    with pytest.raises(ValueError, match="infinite"):
        encoder(features, lengths, times=torch.full((2, 50), math.inf))


def test_times_may_be_nan_in_padding_only():
    encoder = make().eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.01, 50, dtype=torch.float64)
    assert torch.equal(encoder(features, lengths, times=times)[0], encoder(features, lengths)[0])
    times[1, 30] = math.nan
    with pytest.raises(ValueError, match="NaN is for padding only"):
        encoder(features, lengths, times=times)
