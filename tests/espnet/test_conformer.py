"""ESPnet's own encoders with our positions, each with every ``pos`` of the table."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("espnet2")

from espnet2.asr.ctc import CTC
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from espnet2.utils.get_default_kwargs import get_default_kwargs

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import AsGiven
from cape_plugins.embedding import PositionalEmbedding1d
from cape_plugins.espnet.conformer import (
    CapeBranchformerEncoder,
    CapeConformerEncoder,
    CapeEBranchformerEncoder,
)
from cape_plugins.espnet.seconds import PositionSettings, TooShortUttError
from cape_plugins.positions import frame_times

FEATURES = 20
TABLE = variants.names(axes=1)
QUIET = dict(dropout_rate=0.0, positional_dropout_rate=0.0)
SIZES = dict(output_size=16, attention_heads=2, num_blocks=2)
CONFORMER = dict(linear_units=32, cnn_module_kernel=7, macaron_style=True, rel_pos_type="latest")
BRANCHES = dict(cgmlp_linear_units=32, cgmlp_conv_kernel=7)
OURS = {
    "cape_conformer": (CapeConformerEncoder, CONFORMER),
    "cape_e_branchformer": (CapeEBranchformerEncoder, {**BRANCHES, "use_ffn": True}),
    "cape_branchformer": (CapeBranchformerEncoder, BRANCHES),
}
ESPNETS = {
    "cape_conformer": ConformerEncoder,
    "cape_e_branchformer": EBranchformerEncoder,
    "cape_branchformer": BranchformerEncoder,
}
SUBSAMPLING = {  # frames from one output to the next, and seen beyond the first by each
    "linear": (1, 0),
    "conv2d": (4, 6),
    "conv2d1": (1, 4),
    "conv2d2": (2, 6),
    "conv2d6": (6, 10),
    "conv2d8": (8, 14),
}
CONV1D = ("conv1d1", "conv1d2", "conv1d3")  # E-Branchformer alone

every_encoder = pytest.mark.parametrize("name", OURS)
every_pos = pytest.mark.parametrize("pos", [*TABLE, "rel_pos"])


def make(name: str, pos: str = "cape", **options):
    torch.manual_seed(0)
    kind, sizes = OURS[name]
    return kind(FEATURES, pos=pos, **{**SIZES, **QUIET, **sizes, **options})


def espnets(name: str, **options):
    torch.manual_seed(1)
    return ESPNETS[name](FEATURES, **{**SIZES, **QUIET, **OURS[name][1], **options})


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


def assert_alone(encoder, features, lengths, **extra) -> None:
    """Each utterance of the batch gives what it gives alone, frame by frame."""
    out, olens, _ = encoder(features, lengths, **extra)
    assert out.shape[1] == olens.max()
    for index, length in enumerate(lengths.tolist()):
        alone, count, _ = encoder(features[index, None, :length], lengths[index, None], **extra)
        assert count.item() == olens[index]
        torch.testing.assert_close(out[index, : olens[index]], alone[0], rtol=1e-5, atol=1e-5)


def place(encoder) -> nn.Module:
    """What stands where ESPnet's positional encoding stood."""
    (found,) = [m for m in encoder.embed.modules() if hasattr(m, "seconds")]
    return found


# --- with rel_pos they are ESPnet's own


@pytest.mark.parametrize("input_layer", ["conv2d", "linear"])
@every_encoder
def test_rel_pos_is_espnets_own_weight_for_weight(name, input_layer):
    theirs = espnets(name, input_layer=input_layer)
    ours = make(name, "rel_pos", input_layer=input_layer)
    shapes = {key: value.shape for key, value in ours.state_dict().items()}
    assert shapes == {key: value.shape for key, value in theirs.state_dict().items()}
    ours.load_state_dict(theirs.state_dict())
    inputs = batch(61, 61)
    for mode in (True, False):  # batch norm learns in training what it takes in evaluation
        expected, expected_lengths, _ = theirs.train(mode)(*inputs)
        found, lengths, _ = ours.train(mode)(*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert lengths.tolist() == expected_lengths.tolist()
        found.square().sum().backward()
        expected.square().sum().backward()
    gradients = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key].grad, rtol=1e-3, atol=1e-3)
    for key, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, theirs.get_buffer(key))


def test_the_legacy_relative_positions_of_old_recipes_are_espnets_too():
    theirs = espnets("cape_conformer", rel_pos_type="legacy").eval()
    ours = make("cape_conformer", "rel_pos", rel_pos_type="legacy").eval()
    ours.load_state_dict(theirs.state_dict())
    inputs = batch(61, 61)
    torch.testing.assert_close(ours(*inputs)[0], theirs(*inputs)[0])


@every_encoder
def test_weights_of_espnets_absolute_positions_train_on_with_ours(name):
    """Only attention variants and the table of abspos have weights of their own."""
    attention = "selfattention_layer_type" if name == "cape_conformer" else "attention_layer_type"
    theirs = espnets(name, pos_enc_layer_type="abs_pos", **{attention: "selfattn"})
    ours = make(name, "cape")
    ours.load_state_dict(theirs.state_dict())
    assert set(ours.state_dict()) - set(theirs.state_dict()) == {"mark._extra_state"}


# --- every pos of the table


@every_pos
@every_encoder
def test_forward_and_backward_reach_the_input_and_every_parameter(name, pos):
    encoder = make(name, pos)
    features, lengths = batch(50, 44)
    features.requires_grad_()
    out, olens, states = encoder(features, lengths)
    assert out.shape == (2, 11, 16)
    assert olens.tolist() == [11, 10]
    assert states is None
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    assert features.grad.abs().sum() > 0
    silent = [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@every_pos
@every_encoder
def test_a_padded_utterance_gives_the_result_it_gives_alone(name, pos):
    assert_alone(make(name, pos).eval(), *batch(163, 120, 101, 7))


@pytest.mark.parametrize(
    ("name", "input_layer"),
    [
        *((name, layer) for name in OURS for layer in SUBSAMPLING),
        *(("cape_e_branchformer", layer) for layer in CONV1D),
    ],
)
@pytest.mark.parametrize("pos", ["cape", "relpos", "rel_pos"])
def test_whatever_the_input_layer(name, pos, input_layer):
    assert_alone(make(name, pos, input_layer=input_layer).eval(), *batch(101, 78, 60))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cape_conformer", {"positionwise_layer_type": "conv1d"}),
        ("cape_conformer", {"positionwise_layer_type": "conv1d-linear"}),
        ("cape_conformer", {"use_cnn_module": False, "normalize_before": False}),
        ("cape_conformer", {"concat_after": True, "qk_norm": True}),
        ("cape_e_branchformer", {"macaron_ffn": True, "merge_conv_kernel": 5}),
        ("cape_e_branchformer", {"use_linear_after_conv": True, "gate_activation": "relu"}),
        ("cape_branchformer", {"merge_method": "learned_ave"}),
        ("cape_branchformer", {"merge_method": "fixed_ave", "cgmlp_weight": 0.3}),
        ("cape_branchformer", {"use_cgmlp": False, "qk_norm": True}),
    ],
)
@pytest.mark.parametrize("pos", ["cape", "relpos"])
def test_whatever_the_options_of_espnets_class(name, pos, options):
    assert_alone(make(name, pos, **options).eval(), *batch(101, 78, 60))


@pytest.mark.parametrize("garbage", [1e6, math.nan])
@every_encoder
def test_what_lies_in_the_padding_does_not_matter(name, garbage):
    encoder = make(name).eval()
    features, lengths = batch(60, 40)
    clean, _, _ = encoder(features, lengths)
    features[1, 40:] = garbage
    dirty, _, _ = encoder(features, lengths)
    assert dirty.equal(clean)


@pytest.mark.parametrize("pos", ["sinpos", "relpos", "rel_pos"])
def test_more_padding_changes_nothing_in_training_either_not_even_batch_norm(pos):
    features, lengths = batch(60, 40)
    less, more = (make("cape_conformer", pos).train() for _ in range(2))
    expected, olens, _ = less(features, lengths)
    found, _, _ = more(nn.functional.pad(features, (0, 0, 0, 41)), lengths)
    for row, length in enumerate(olens.tolist()):
        torch.testing.assert_close(found[row, :length], expected[row, :length])
    assert len(list(more.named_buffers())) == 6
    for key, buffer in more.named_buffers():
        torch.testing.assert_close(buffer, less.get_buffer(key))


@every_encoder
def test_an_empty_utterance_disturbs_nothing(name):
    for pos in ("cape", "relpos"):
        encoder = make(name, pos)
        features, _ = batch(30, 30)
        out, olens, _ = encoder(features, torch.tensor([30, 3]))  # conv2d needs 7
        assert olens.tolist() == [6, 0]
        out.sum().backward()
        assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize(("frames", "lengths"), [(6, [6, 6]), (20, [0, 0]), (0, [0, 0])])
@every_encoder
def test_nothing_to_hear_is_what_espnets_decoding_calls_too_short(name, frames, lengths):
    with pytest.raises(TooShortUttError):
        make(name)(torch.zeros(2, frames, FEATURES), torch.tensor(lengths))


# --- positions are seconds


@pytest.mark.parametrize("input_layer", [*SUBSAMPLING, *CONV1D])
def test_a_frame_is_where_the_middle_of_what_its_convolutions_see_is(input_layer):
    encoder = make("cape_e_branchformer", "sinpos", input_layer=input_layer, num_blocks=1)
    features, lengths = batch(61)
    features.requires_grad_()
    placed = place(encoder)
    seen = []
    placed.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    encoder.eval()(features, lengths, times=frame_times(lengths, 0.02) + 5)
    (content,) = seen
    for frame in (0, content.shape[1] // 2, content.shape[1] - 1):
        (gradient,) = torch.autograd.grad(
            content[0, frame].square().sum(), features, retain_graph=True
        )
        (sees,) = gradient[0].abs().sum(dim=1).nonzero(as_tuple=True)
        middle = 5 + 0.02 * (sees[0] + sees[-1]).item() / 2
        assert placed.seconds[0, frame].item() == pytest.approx(middle)


@pytest.mark.parametrize(("input_layer", "geometry"), SUBSAMPLING.items())
@every_encoder
def test_frames_whose_convolutions_see_padding_are_padding(name, input_layer, geometry):
    encoder = make(name, input_layer=input_layer, num_blocks=1).eval()
    stride, reach = geometry
    for length in range(41, 49):
        _, olens, _ = encoder(*batch(60, length))
        real = sum(stride * frame + reach < length for frame in range(60))
        assert olens[1] == real
        assert (~place(encoder).seconds[1].isnan()).sum() == real


@pytest.mark.parametrize(
    ("pos", "moves"), [("sinpos", True), ("cape", False), ("nopos", False), ("relpos", False)]
)
@every_encoder
def test_each_utterance_is_centred_over_its_own_frames(name, pos, moves):
    """So their clocks may start whenever they like, with cape."""
    encoder = make(name, pos).eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.01, 50, dtype=torch.float64)
    now = encoder(features, lengths, times=times)[0]
    later = encoder(features, lengths, times=times + torch.tensor([[100.0], [7.0]]))[0]
    for row, length in ((0, 11), (1, 7)):
        same = torch.allclose(now[row, :length], later[row, :length], atol=1e-4)
        assert same is not moves


@every_pos
@every_encoder
def test_times_count_and_without_them_the_frame_shift(name, pos):
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.02, 50, dtype=torch.float64)
    at_10_ms, at_20_ms = make(name, pos).eval(), make(name, pos, frame_shift=0.02).eval()
    weights = {k: v for k, v in at_10_ms.state_dict().items() if "mark" not in k}
    if any(weights[k].shape != v.shape for k, v in at_20_ms.named_parameters()):
        at_10_ms = at_20_ms  # contexts in seconds make tables of another size
    else:
        at_20_ms.load_state_dict(weights)
    assert at_10_ms(features, lengths, times=times)[0].equal(at_20_ms(features, lengths)[0])


@every_encoder
def test_content_is_scaled_as_by_espnets_own_positions(name):
    encoder = make(name, "nopos").eval()
    given, placed = [], place(encoder)
    placed.register_forward_hook(lambda _, inside, out: given.extend([inside[0], out]))
    encoder(*batch(30))
    torch.testing.assert_close(given[1], given[0] * 4)  # √16


@every_encoder
def test_options_are_in_seconds_after_subsampling(name):
    encoder = make(name, "cape", frame_shift=0.02)
    assert place(encoder).position.max_local_shift == pytest.approx(0.04)  # half of 4 × 20 ms
    assert place(encoder).position.augmentation.max_global_shift == 30.0
    assert place(encoder).position.frequency_scale == 30.0
    table = make(name, "abspos", abspos_context=0.4, input_layer="conv2d2")
    assert place(table).position.table.shape == (20, 16)  # of 20 ms
    assert 0.09 < place(table).position.table.abs().max() <= 0.1
    reach = make(name, "relpos", relpos_context=0.4)
    contexts = [m.context for m in reach.modules() if isinstance(m, PositionalAttention)]
    assert contexts == [10, 10]


# --- training and evaluation


@every_pos
@every_encoder
def test_evaluation_is_deterministic_and_without_dropout_only_what_augments_is_random(name, pos):
    encoder = make(name, pos).eval()
    inputs = batch(40, 30)
    assert encoder(*inputs)[0].equal(encoder(*inputs)[0])
    augments = pos in TABLE and variants.get(pos).augment is not AsGiven
    encoder.train()
    assert encoder(*inputs)[0].equal(encoder(*inputs)[0]) is not augments


@pytest.mark.parametrize("pos", ["cape", "relpos"])
@every_encoder
def test_each_dropout_acts_in_training_only(name, pos):
    off = {} if pos == "relpos" else dict(max_global_shift=0.0, max_local_shift=0.0)
    off |= {} if pos == "relpos" else dict(max_global_scale=1.0)
    for rate in ("dropout_rate", "positional_dropout_rate", "attention_dropout_rate"):
        encoder = make(name, pos, **off, **{rate: 0.5})
        inputs = batch(40)
        assert not encoder.train()(*inputs)[0].equal(encoder(*inputs)[0])
        assert encoder.eval()(*inputs)[0].equal(encoder(*inputs)[0])


@every_pos
@every_encoder
def test_under_autocast_the_result_stays_close_and_trains(name, pos):
    encoder = make(name, pos).eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.01, 50, dtype=torch.float64) + 3600
    exact, olens, _ = encoder(features, lengths, times=times)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _, _ = encoder(features, lengths, times=times)
        encoder.train()(features, lengths, times=times)[0].float().sum().backward()
    for row, length in enumerate(olens.tolist()):
        assert (out[row, :length].float() - exact[row, :length]).abs().max() < 0.15
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("pos", ["cape", "relpos", "rel_pos"])
@every_encoder
def test_trains_in_bfloat16(name, pos):
    encoder = make(name, pos).bfloat16()
    features, lengths = batch(50, 31)
    out, _, _ = encoder(features.bfloat16(), lengths)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize(
    ("name", "pos", "training"),
    [("cape_conformer", "relpos", True), ("cape_e_branchformer", "cape", False)],
)
def test_compiles_into_one_graph_where_espnets_class_does_not_wait(name, pos, training):
    torch.compiler.reset()
    encoder = make(name, pos, num_blocks=1)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    inputs = batch(30, 20)
    if training:
        compiled(*inputs)[0].sum().backward()
    compiled.eval(), encoder.eval()
    torch.testing.assert_close(compiled(*inputs)[0], encoder(*inputs)[0])


@pytest.mark.parametrize("pos", ["cape", "relpos", "rel_pos"])
def test_activation_checkpointing_gives_the_same_gradients(pos):
    found = []
    for layers in ([], [0, 1, 2]):
        encoder = make("cape_e_branchformer", pos, gradient_checkpoint_layers=layers).train()
        torch.manual_seed(3)
        encoder(*batch(50, 31))[0].square().sum().backward()
        found.append([p.grad for p in encoder.parameters()])
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(plain, checkpointed)


@pytest.mark.parametrize("pos", ["cape", "relpos", "rel_pos"])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("cape_conformer", "stochastic_depth_rate"),
        ("cape_branchformer", "stochastic_depth_rate"),
        ("cape_e_branchformer", "layer_drop_rate"),
    ],
)
def test_layers_are_left_out_in_training_as_espnet_does(name, option, pos):
    encoder = make(name, pos, num_blocks=3, **{option: 0.5})
    calls = []
    for layer in encoder.encoders:
        layer.norm_mha.register_forward_hook(lambda *_: calls.append(1))
    inputs = batch(40, 31)
    for mode, few, many in ((False, 60, 60), (True, 10, 50)):
        calls.clear()
        encoder.train(mode)
        for _ in range(20):
            assert encoder(*inputs)[0].isfinite().all()
        assert few <= len(calls) <= many


@pytest.mark.parametrize("pos", ["cape", "relpos", "relpos_first", "rel_pos"])
@pytest.mark.parametrize("name", ["cape_conformer", "cape_e_branchformer"])
def test_intermediate_ctc_conditions_the_layers_above(name, pos):
    encoder = make(
        name, pos, num_blocks=3, interctc_layer_idx=[1, 2], interctc_use_conditioning=True
    ).eval()
    plain = make(name, pos, num_blocks=3).eval()
    encoder.conditioning_layer = nn.Linear(5, 16)  # as ESPnet's model does
    ctc = CTC(odim=5, encoder_output_size=16)
    features, lengths = batch(60, 40)
    (out, inside), olens, _ = encoder(features, lengths, ctc=ctc)
    assert [number for number, _ in inside] == [1, 2]
    assert not torch.allclose(out, plain(features, lengths)[0], atol=1e-3)
    (alone, alone_inside), _, _ = encoder(features[1:, :40], lengths[1:], ctc=ctc)
    for batched, single in [(out, alone), (inside[0][1], alone_inside[0][1])]:
        torch.testing.assert_close(batched[1, : olens[1]], single[0], rtol=1e-5, atol=1e-5)
    out.pow(3).sum().backward()
    assert encoder.conditioning_layer.weight.grad.any()


def test_frames_that_the_ctc_calls_blank_may_be_trimmed():
    encoder = make("cape_conformer", "rel_pos", interctc_layer_idx=[1], ctc_trim=True).eval()
    ctc = CTC(odim=5, encoder_output_size=16)
    with torch.no_grad():
        ctc.ctc_lo.bias[0] = 100.0  # all blank
    (out, _), olens, _ = encoder(*batch(60, 50), ctc=ctc)
    assert out.shape[1] == 5  # what ESPnet leaves of 14
    assert olens.tolist() == [5, 5]


@pytest.mark.parametrize("pos", ["cape", "relpos", "relpos_first"])
@every_encoder
def test_espnets_pictures_of_attention_show_the_encoders(name, pos):
    from espnet2.main_funcs.calculate_all_attentions import calculate_all_attentions

    class Recorded(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = make(name, pos).eval()

        def forward(self, speech, speech_lengths):
            self.encoder(speech, speech_lengths)

    features, lengths = batch(60, 40)
    given = {"speech": features, "speech_lengths": lengths}
    attention = "self_attn" if name == "cape_conformer" else "attn"
    found = calculate_all_attentions(Recorded(), given)
    assert sorted(found) == [f"encoder.encoders.{layer}.{attention}" for layer in (0, 1)]
    for seen in found.values():
        assert [tuple(one.shape) for one in seen] == [(2, 14, 14), (2, 9, 9)]
        torch.testing.assert_close(seen[1].sum(dim=2), torch.ones(2, 9))


@pytest.mark.parametrize("init", ["xavier_uniform", "kaiming_normal"])
@pytest.mark.parametrize("pos", ["abspos", "relpos"])
@every_encoder
def test_espnets_init_leaves_learnable_positions_as_the_authors_draw_them(name, pos, init):
    from espnet2.torch_utils.initialize import initialize

    encoder = make(name, pos)
    initialize(encoder, init)
    drawn = [p for n, p in encoder.named_parameters() if "relative" in n or "table" in n]
    assert drawn
    for table in drawn:
        assert 0.09 < table.abs().max() <= 0.1


# --- any attention of the table


@every_encoder
def test_a_row_of_the_table_is_a_pos_of_each_encoder(name, new_variant):
    encoder = make(name, new_variant, frame_shift=0.1).eval()
    features, lengths = batch(163, 120, 20)
    assert_alone(encoder, features, lengths)
    out = encoder(features, lengths)[0]
    later = encoder(features, lengths, times=frame_times(lengths, 0.1, 163) + 60)[0]
    torch.testing.assert_close(later, out, rtol=1e-4, atol=1e-4)
    slower = encoder(features, lengths, times=frame_times(lengths, 0.2, 163))[0]
    assert not torch.allclose(slower, out, atol=1e-3)


# --- options and checkpoints


@every_encoder
def test_the_options_shown_are_espnets_and_ours(name):
    shown = get_default_kwargs(OURS[name][0])
    theirs = get_default_kwargs(ESPNETS[name])
    ours = get_default_kwargs(PositionSettings)
    assert {"pos", "max_global_shift", "relpos_context", "frame_shift"} <= ours.keys()
    assert shown.keys() - theirs.keys() == ours.keys()
    assert theirs.items() <= shown.items()
    assert shown["pos"] == "cape"


@every_pos
@every_encoder
def test_every_pos_takes_the_defaults_that_espnet_writes_and_the_words_of_recipes(name, pos):
    kind = OURS[name][0]
    written = get_default_kwargs(kind)
    assert "pos_enc_layer_type" in written
    for rel_pos_type in ("latest", "legacy"):
        changed = dict(rel_pos_type=rel_pos_type, num_blocks=1, output_size=16, pos=pos)
        kind(**{**written, **changed, "input_size": FEATURES})


@pytest.mark.parametrize("value", ["bogus", "CAPE", None, 3, ["cape"]])
@every_encoder
def test_an_unknown_pos_is_refused_with_the_list_of_known(name, value):
    with pytest.raises(ValueError, match=r"choose one of nopos, abspos, .*, rel_pos$") as error:
        make(name, value)
    assert repr(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pos", "options"),
    [
        ("nopos", {"max_global_shift": 5.0}),
        ("cape", {"abspos_context": 20.0}),
        ("relpos", {"max_local_shift": 0.01}),
        ("rel_pos", {"max_global_scale": 2.0}),
        ("rel_pos", {"relpos_values": True}),
        ("cape", {"pos_enc_layer_type": "scaled_abs_pos"}),
        ("rel_pos", {"pos_enc_layer_type": "abs_pos"}),
        ("cape", {"zero_triu": True}),
    ],
)
@every_encoder
def test_an_option_that_pos_does_not_take_is_refused_at_once(name, pos, options):
    with pytest.raises(ValueError, match=f"encoder_conf {next(iter(options))} =") as error:
        make(name, pos, **options)
    assert pos in str(error.value)
    assert "leave it out" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("cape_conformer", {"selfattention_layer_type": "selfattn"}, "selfattention_layer_type"),
        ("cape_conformer", {"max_pos_emb_len": 100}, "max_pos_emb_len"),
        ("cape_e_branchformer", {"attention_layer_type": "fast_selfattn"}, "fast_selfattn"),
        ("cape_branchformer", {"input_layer": None}, "input_layer"),
        ("cape_conformer", {"frame_shift": 0}, "> 0"),
        ("cape_conformer", {"max_global_scale": 0.9}, "≥ 1"),
        ("cape_conformer", {"pos": "abspos", "abspos_context": 0.03}, "≥ 0.04"),
        ("cape_conformer", {"pos": "relpos", "relpos_context": 0.03}, "≥ 0.04"),
        ("cape_conformer", {"ctc_trim": True, "interctc_layer_idx": [1]}, "ctc_trim"),
    ],
)
def test_other_values_that_do_not_fit_are_refused(name, options, told):
    with pytest.raises(ValueError, match=told):
        make(name, **options)


@pytest.mark.parametrize("option", ["max_global_shfit", "block_size"])  # a typo; streaming
@every_encoder
def test_an_option_that_nobody_knows_is_refused(name, option):
    with pytest.raises(TypeError, match=option):
        make(name, **{option: 1})


@every_encoder
def test_inputs_that_do_not_fit_are_refused(name):
    encoder = make(name)
    features, lengths = batch(50, 31)
    with pytest.raises(ValueError, match=r"ilens must be \(2,\)"):
        encoder(features, lengths[:1])
    with pytest.raises(ValueError, match=r"times must be \(2, 50\)"):
        encoder(features, lengths, times=torch.zeros(2, 11))
    with pytest.raises(ValueError, match=r"ilens must lie in \[0, T=50\], got 51"):
        encoder(features, lengths + torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="infinite"):
        encoder(features, lengths, times=torch.full((2, 50), math.inf))


@every_pos
@every_encoder
def test_a_checkpoint_restores_every_parameter_and_knows_its_pos(name, pos):
    saved = make(name, pos).eval()
    torch.manual_seed(5)
    kind, sizes = OURS[name]
    restored = kind(FEATURES, pos=pos, **SIZES, **sizes).eval()
    restored.load_state_dict(saved.state_dict())
    inputs = batch(50, 31)
    assert restored(*inputs)[0].equal(saved(*inputs)[0])
    if pos not in ("nopos", "rel_pos"):
        with pytest.raises((ValueError, RuntimeError)):
            make(name, "nopos").load_state_dict(saved.state_dict())


@every_encoder
def test_positions_are_one_module_whose_state_has_one_name(name):
    encoder = make(name, "abspos")
    tables = [key for key in encoder.state_dict() if "table" in key]
    assert len(tables) == 1
    assert sum(isinstance(m, PositionalEmbedding1d) for m in encoder.modules()) == 1
