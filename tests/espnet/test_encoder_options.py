"""Options of our encoders: ESPnet's own mean what they mean there, what does not fit is refused."""

import math

import pytest
import torch
from espnet2.asr.encoder.conformer_encoder import PositionalEncoding
from espnet2.utils.get_default_kwargs import get_default_kwargs
from torch import nn

from cape_plugins.espnet.options import OURS
from cape_plugins.espnet.transformer import SECTION_4_2, SpeechTransformerEncoder
from cape_plugins.places import frame_times
from espnet_support import ESPNETS, assert_alone, batch, every_encoder, kind_of, make

# --- ESPnet's own: weights, results, options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ESPNETS),
        *((name, {"input_layer": "linear", "qk_norm": True}) for name in ESPNETS),
        ("cape_conformer", {"rel_pos_type": "legacy"}),
    ],
)
def test_espnet_rel_pos_is_espnets_own_weight_for_weight(name, options):
    theirs = make(name.removeprefix("cape_"), **options)
    ours = make(name, "espnet_rel_pos", perturb=False, **options)
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


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("name", ESPNETS)
def test_weights_of_espnets_absolute_positions_train_on_with_ours(name, qk_norm):
    """Only attention variants and the table of abspos have weights of their own."""
    attention = "selfattention_layer_type" if name == "cape_conformer" else "attention_layer_type"
    own = {"pos_enc_layer_type": "abs_pos", attention: "selfattn"}
    theirs = make(name.removeprefix("cape_"), qk_norm=qk_norm, **own).eval()
    for pos in ("cape", "nopos"):
        ours = make(name, pos, perturb=False, qk_norm=qk_norm).eval()
        missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
        assert (missing, unexpected) == ([], [])
        more = set(ours.state_dict()) - set(theirs.state_dict())
        assert f"positions.mark.variant_{pos}" in more
        assert all(key.startswith("positions.mark.") for key in more)
    # and without positions both give the same
    (encoding,) = (m for m in theirs.embed.modules() if isinstance(m, PositionalEncoding))
    encoding.pe.zero_()
    inputs = batch(61, 61)
    torch.testing.assert_close(ours(*inputs)[0], theirs(*inputs)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "input_layer"),
    [
        *((name, f"conv2d{n}") for name in ESPNETS for n in ("", 1, 2, 6, 8)),
        *((name, "linear") for name in ESPNETS),
        *(("cape_e_branchformer", f"conv1d{n}") for n in (1, 2, 3)),
    ],
)
def test_whatever_the_input_layer(name, input_layer):
    assert_alone(make(name, "cape", input_layer=input_layer).eval(), *batch(101, 78, 60))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cape_conformer", {"positionwise_layer_type": "conv1d"}),
        ("cape_conformer", {"positionwise_layer_type": "conv1d-linear"}),
        ("cape_conformer", {"use_cnn_module": False, "normalize_before": False}),
        ("cape_conformer", {"concat_after": True, "qk_norm": True}),
        ("cape_e_branchformer", {"macaron_ffn": True, "gradient_checkpoint_layers": [2]}),
        ("cape_e_branchformer", {"merge_conv_kernel": 5, "interctc_layer_idx": [1]}),
        ("cape_e_branchformer", {"use_linear_after_conv": True, "gate_activation": "relu"}),
        ("cape_branchformer", {"merge_method": "learned_ave"}),
        ("cape_branchformer", {"merge_method": "fixed_ave", "cgmlp_weight": 0.3}),
        ("cape_branchformer", {"use_cgmlp": False, "qk_norm": True}),
    ],
)
def test_whatever_the_options_of_espnets_class(name, options):
    assert_alone(make(name, "relpos", **options).eval(), *batch(101, 78, 60))


@pytest.mark.parametrize("pos", ["sinpos", "relpos", "espnet_rel_pos"])
def test_more_padding_changes_nothing_in_training_either_not_even_batch_norm(pos):
    features, lengths = batch(60, 40)
    less, more = (make("cape_conformer", pos).train() for _ in range(2))
    expected, olens, _ = less(features, lengths)
    found, _, _ = more(nn.functional.pad(features, (0, 0, 0, 41)), lengths)
    for row, length in enumerate(olens.tolist()):
        torch.testing.assert_close(found[row, :length], expected[row, :length])
    learned = [(key, buffer) for key, buffer in more.named_buffers() if "norm" in key]
    assert len(learned) == 6
    for key, buffer in learned:
        torch.testing.assert_close(buffer, less.get_buffer(key))


def test_the_model_is_the_papers_unless_told_otherwise():
    with torch.device("meta"):  # 36 layers, 255 million parameters
        encoder = SpeechTransformerEncoder(80)
    assert (len(encoder.encoders), encoder.output_size()) == (36, 768)
    assert encoder.embed[0].conv.weight.shape == (2 * 768, 80, 7)
    assert encoder.embed[0].conv.stride == (3,)
    layer = encoder.encoders[0]
    assert (layer.self_attn.h, layer.feed_forward.w_1.out_features) == (4, 3072)
    assert (encoder.embed[0].dropout.p, encoder.dropout.p) == (0.3, 0.0)
    assert [m.p for m in layer.modules() if isinstance(m, nn.Dropout)] == [0.1, 0.1]
    assert layer.self_attn.dropout_rate == encoder.encoders.layer_drop_rate == 0.1
    found = dict(encoder.positions.options)
    assert found.pop("max_local_shift") == pytest.approx(0.015)
    shifts = {"max_global_shift": 30.0, "max_global_scale": 1.1, "mean_normalize": True}
    assert found == {**shifts, "frequency_scale": 30.0, "base": 10_000.0}
    assert OURS["random_range"] == OURS["pose_range"] == 60.0


@pytest.mark.parametrize("pos", ["cape", "espnet_rel_pos"])
@every_encoder
def test_every_pos_takes_the_defaults_that_espnet_writes_and_the_words_of_recipes(name, pos):
    kind = kind_of(name)
    written = get_default_kwargs(kind)
    theirs = get_default_kwargs(kind.__bases__[-1])
    if name == "cape_transformer":
        theirs |= SECTION_4_2
        fixed = ("input_layer", "padding_idx", "activation_type")
        for option in (*fixed, "use_cnn_module", "cnn_module_kernel"):
            del theirs[option]
    assert written == theirs | OURS
    sizes = dict(num_blocks=1, output_size=16, input_size=20)
    for rel_pos_type in ("latest", "legacy"):
        kind(**{**written, "rel_pos_type": rel_pos_type, **sizes, "pos": pos})


# --- refusals

REFUSED = [  # what values are in range is tested in the core
    *(("pos", value) for value in ("bogus", None, 3, ["cape"], "rel_pos")),
    ("max_global_shift", -1.0),
    ("max_local_shift", [0.01, 0.02]),
    *(("content_scale", value) for value in (0, -8.0, math.nan, "root", True)),
    *(("frame_shift", value) for value in (0, None, 10, "0.01")),
    ("ctc_trim", True),
]
ROWS = [(name, *row) for name in ("cape_transformer", "cape_conformer") for row in REFUSED]
ROWS += [("cape_transformer", "layer_drop_rate", value) for value in (1, -0.1)]
ROWS += [(name, "input_layer", None) for name in ESPNETS]


@pytest.mark.parametrize(("name", "option", "value"), ROWS)
def test_a_bad_value_is_refused_in_one_line_whatever_pos_is(name, option, value):
    for pos in ["nopos", "cape"] if option != "pos" else [value]:
        with pytest.raises(ValueError, match=option) as error:
            make(name, **{"pos": pos, option: value})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["max_global_shfit", "block_size"])  # one of streaming encoders
@every_encoder
def test_an_option_that_nobody_has_is_refused_by_name(name, option):
    with pytest.raises(ValueError, match=f"encoder_conf.*{option}"):
        make(name, **{option: 1})


def test_a_misspelled_option_is_answered_for_the_pos_that_was_given():
    for pos, given, meant, takes in (
        ("espnet_rel_pos", "num_block", "num_blocks", "espnet_rel_pos takes .*frame_shift$"),
        ("espnet_rel_pos", "frame_shfit", "frame_shift", "espnet_rel_pos takes"),
        ("rope", "max_global_shfit", "max_global_shift", "rope takes .*rope_base"),
        ("rope", "num_block", "num_blocks", "rope takes"),
    ):
        with pytest.raises(ValueError, match=f"{given} .*{meant}.*{takes}"):
            make("cape_conformer", pos, **{given: 3})
    with pytest.raises(ValueError, match="espnet_rel_pos") as error:
        make("cape_conformer", "espnet_rel_pos", max_global_shfit=3)
    assert "max_global_shift" not in str(error.value)


NOT_TAKEN = [
    ("nopos", "max_global_shift", 5.0),
    ("cape", "abspos_context", 20.0),
    ("cape", "relpos_context", 6.0),
    ("cape_alibi", "max_global_shift", 5.0),
    ("espnet_rel_pos", "max_global_scale", 2.0),
    ("espnet_rel_pos", "content_scale", 1),  # ESPnet's own scales by √channels
    ("espnet_rel_pos", "pos_enc_layer_type", "abs_pos"),
    ("cape", "pos_enc_layer_type", "scaled_abs_pos"),
    ("cape", "zero_triu", True),
]
NOT_TAKEN_BY = [
    ("cape_conformer", "cape", "selfattention_layer_type", "selfattn"),
    ("cape_conformer", "cape", "max_pos_emb_len", 100),
    ("cape_conformer", "cape", "abspos_context", None),
    ("cape_e_branchformer", "cape", "attention_layer_type", "fast_selfattn"),
]


@pytest.mark.parametrize(
    ("name", "pos", "option", "value"),
    [*(("cape_transformer", *row) for row in NOT_TAKEN), *NOT_TAKEN_BY],
)
def test_an_option_that_pos_does_not_take_is_refused_at_once(name, pos, option, value):
    with pytest.raises(ValueError, match=f"^encoder_conf {option} .*{pos}") as error:
        make(name, pos, **{option: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["input_layer", "cnn_module_kernel"])
def test_the_papers_transformer_takes_no_option_that_would_change_nothing(option):
    with pytest.raises(ValueError, match=f"encoder_conf {option} .*cape_conformer"):
        make("cape_transformer", **{option: 31})
    make("cape_conformer", cnn_module_kernel=31)


@pytest.mark.parametrize(("pos", "option"), [("abspos", "overflow"), ("cape", "mean_normalize")])
def test_what_our_encoders_set_themselves_is_no_option(pos, option):
    with pytest.raises(ValueError, match=f"encoder_conf {option}"):
        make(pos=pos, **{option: False})


@pytest.mark.parametrize("seconds", [0.02, math.inf])
@pytest.mark.parametrize("pos", ["abspos", "relpos"])
def test_a_table_without_a_frame_is_refused(pos, seconds):
    for name in ("cape_transformer", "cape_conformer"):
        with pytest.raises(ValueError, match=f"{pos}_context"):
            make(name, pos, **{f"{pos}_context": seconds})


def test_inputs_that_do_not_fit_are_refused():
    encoder = make()
    features, lengths = batch(50, 31)
    nan_in_speech = frame_times(lengths, 0.01, 50)
    nan_in_speech[1, 30] = math.nan
    for given, times, named in (
        (lengths[:1], None, "ilens"),
        (lengths, torch.zeros(2, 17), "times"),
        (lengths + torch.tensor([1, 0]), None, "ilens"),
        (lengths, torch.full((2, 50), math.inf), "times"),
        (lengths, nan_in_speech, "times"),
    ):
        with pytest.raises(ValueError, match=named):
            encoder(features, given, times=times)
