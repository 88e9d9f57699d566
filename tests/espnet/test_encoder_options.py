"""Options of our encoders: ESPnet's own mean what they mean there, what does not fit is refused."""

import math
import re

import pytest
import torch
from torch import nn

pytest.importorskip("espnet2")

from espnet2.asr.encoder.conformer_encoder import PositionalEncoding
from espnet2.utils.get_default_kwargs import get_default_kwargs

from cape_plugins.espnet.options import SecondsSettings
from cape_plugins.espnet.transformer import PAPER, CapeTransformerEncoder
from cape_plugins.positions import frame_times
from espnet_support import ALL, ESPNETS, assert_alone, batch, every_encoder, kind_of, make

# --- ESPnet's own: weights, results, options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ESPNETS),
        *((name, {"input_layer": "linear", "qk_norm": True}) for name in ESPNETS),
        ("cape_conformer", {"rel_pos_type": "legacy"}),
    ],
)
def test_rel_pos_is_espnets_own_weight_for_weight(name, options):
    theirs = make(name.removeprefix("cape_"), **options)
    ours = make(name, "rel_pos", perturb=False, **options)
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
        assert (missing, unexpected) == (["mark._extra_state"], [])
        assert set(ours.state_dict()) - set(theirs.state_dict()) == {"mark._extra_state"}
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
        ("cape_e_branchformer", {"macaron_ffn": True, "gradient_checkpoint_layers": [2]}),
        ("cape_e_branchformer", {"merge_conv_kernel": 5, "interctc_layer_idx": [1]}),
        ("cape_e_branchformer", {"use_linear_after_conv": True, "gate_activation": "relu"}),
        ("cape_branchformer", {"merge_method": "learned_ave"}),
        ("cape_branchformer", {"merge_method": "fixed_ave", "cgmlp_weight": 0.3}),
        ("cape_branchformer", {"merge_method": "fixed_ave", "cgmlp_weight": 1}),
        ("cape_branchformer", {"use_cgmlp": False, "qk_norm": True, "stochastic_depth_rate": 0}),
    ],
)
@pytest.mark.parametrize("pos", ["cape", "relpos"])
def test_whatever_the_options_of_espnets_class(name, pos, options):
    assert_alone(make(name, pos, **options).eval(), *batch(101, 78, 60))


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


def test_the_model_is_the_papers_unless_told_otherwise():
    with torch.device("meta"):  # 36 layers, 255 million parameters
        encoder = CapeTransformerEncoder(80)
    assert (len(encoder.encoders), encoder.output_size()) == (36, 768)
    assert encoder.embed[0].conv.weight.shape == (2 * 768, 80, 7)
    assert encoder.embed[0].conv.stride == (3,)
    layer = encoder.encoders[0]
    assert (layer.self_attn.h, layer.feed_forward.w_1.out_features) == (4, 3072)
    assert (encoder.embed[0].dropout.p, encoder.dropout.p) == (0.3, 0.0)
    assert [m.p for m in layer.modules() if isinstance(m, nn.Dropout)] == [0.1, 0.1]
    assert layer.self_attn.dropout_rate == encoder.encoders.layer_drop_rate == 0.1
    augmentation = encoder.position.augmentation
    assert (augmentation.max_global_shift, augmentation.max_global_scale) == (30.0, 1.1)
    assert augmentation.max_local_shift == pytest.approx(0.015)
    assert encoder.position.frequency_scale == 30.0
    assert encoder.attention_settings.unit == pytest.approx(1 / 30)


@pytest.mark.parametrize("pos", ["nopos", "cape", "relpos", "rel_pos"])
@every_encoder
def test_every_pos_takes_the_defaults_that_espnet_writes_and_the_words_of_recipes(name, pos):
    kind = kind_of(name)
    written, ours = get_default_kwargs(kind), get_default_kwargs(SecondsSettings)
    theirs = {**PAPER, "conv_dropout_rate": 0.3}
    if name in ESPNETS:
        theirs = get_default_kwargs(kind.__bases__[-1])
    assert written == theirs | ours
    sizes = dict(num_blocks=1, output_size=16, input_size=20)
    for rel_pos_type in ("latest", "legacy"):
        kind(**{**written, "rel_pos_type": rel_pos_type, **sizes, "pos": pos})


# --- refusals

REFUSED = [  # what values are in range is tested in the core
    *(("pos", value, "choose one of nopos, abspos") for value in ("bogus", None, 3, ["cape"])),
    ("max_global_shift", -1.0, "≥ 0"),
    ("max_local_shift", [0.01, 0.02], "one number"),
    ("attention_logn", 1, "number of tokens"),
    *(("content_scale", value, "> 0 or sqrt") for value in (0, -8.0, math.nan, "root", True)),
    *(("frame_shift", value, "seconds > 0 and ≤ 1") for value in (0, None, 10, "0.01")),
    *((rate, 1.5, r"in \[0, 1\)") for rate in ("layer_drop_rate", "stochastic_depth_rate")),
    *(("interctc_layer_idx", value, "from 1 to 1") for value in ([0, 1], [1, 2], [True], 1, "1")),
    ("input_layer", None, "input_layer"),
    ("max_global_shfit", 1.0, "max_global_shfit"),
    ("block_size", 1, "block_size"),  # of streaming encoders
    ("ctc_trim", True, "does not go with pos"),
]
REFUSED_BY_THE_TRANSFORMER = [
    *(("output_size", value, says) for value, says in ((0, "≥ 1"), (16.0, "integer"))),
    *(("output_size", size, "even and divisible by attention_heads=2") for size in (17, 15)),
    ("attention_heads", -1, "≥ 1"),
    ("linear_units", "64", "integer"),
    ("num_blocks", True, "integer"),
    *((rate, 1.0, r"\[0, 1\)") for rate in ("positional_dropout_rate", "attention_dropout_rate")),
    *(("conv_dropout_rate", value, r"\[0, 1\)") for value in (1.0, -0.1, "a lot", math.nan)),
    *(("layer_drop_rate", value, r"\[0, 1\)") for value in (1, -0.1)),
]

ACTIVATION = "an activation of ESPnet, such as swish or relu"
OPTIONS_OF = {
    "cape_conformer": [
        ("cnn_module_kernel", 8, "must be odd, got 8"),
        ("positionwise_conv_kernel_size", 4, "must be odd"),
        ("activation_type", "swoosh", ACTIVATION),
    ],
    "cape_e_branchformer": [
        ("merge_conv_kernel", 4, "must be odd"),
        ("ffn_activation_type", None, ACTIVATION),
        *(("gradient_checkpoint_layers", value, "from 0 to 2") for value in ([3], [-1], "all", 1)),
    ],
    "cape_branchformer": [
        ("cgmlp_conv_kernel", 30, "must be odd"),
        ("cgmlp_linear_units", 33, "must be even"),
        ("cgmlp_linear_units", 0, "≥ 1"),
        ("cgmlp_weight", 1.5, r"in \[0, 1\]"),
        ("gate_activation", "sigmoid", ACTIVATION),
    ],
}


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        *((name, *row) for name in ALL for row in REFUSED),
        *(("cape_transformer", *row) for row in REFUSED_BY_THE_TRANSFORMER),
        *((name, *row) for name, rows in OPTIONS_OF.items() for row in rows),
    ],
)
def test_a_bad_value_is_refused_whatever_pos_is(name, option, value, says):
    kind = kind_of(name)
    for pos in ["nopos", "cape"] if option != "pos" else [value]:
        known = get_default_kwargs(kind) | get_default_kwargs(kind.__bases__[-1])
        fixed = (name, option) == ("cape_transformer", "input_layer")
        unknown = fixed or (option not in known and option != "output_size")
        with pytest.raises(TypeError if unknown else ValueError) as error:
            make(name, **{"pos": pos, option: value})
        assert option in str(error.value)
        assert "\n" not in str(error.value)
        if not unknown:
            assert re.search(says, str(error.value))
            assert option == "input_layer" or repr(value) in str(error.value) or value is True
        assert option != "pos" or str(error.value).endswith("rel_pos")


NOT_TAKEN = [
    ("nopos", "max_global_shift", 5.0, "cape"),
    ("cape", "abspos_context", 20.0, "abspos"),
    ("cape", "abspos_context", None, "abspos"),
    ("cape", "relpos_context", 6.0, "relpos, relpos_first"),
    ("cape_alibi", "max_global_shift", 5.0, "cape"),
    ("rel_pos", "max_global_scale", 2.0, ""),
    ("rel_pos", "attention_logn", 7, ""),
    ("rel_pos", "content_scale", 1, ""),  # ESPnet's own scales by √channels
    ("rel_pos", "pos_enc_layer_type", "abs_pos", ""),
    ("cape", "pos_enc_layer_type", "scaled_abs_pos", ""),
    ("cape", "zero_triu", True, ""),
]
NOT_TAKEN_BY = [
    ("cape_conformer", "cape", "selfattention_layer_type", "selfattn", ""),
    ("cape_conformer", "cape", "max_pos_emb_len", 100, ""),
    ("cape_conformer", "cape", "ctc_trim", True, ""),
    ("cape_e_branchformer", "cape", "attention_layer_type", "fast_selfattn", ""),
]


@pytest.mark.parametrize(
    ("name", "pos", "option", "value", "takers"),
    [
        *((name, *row) for name in ALL for row in NOT_TAKEN if row[3] or name in ESPNETS),
        *NOT_TAKEN_BY,
    ],
)
def test_an_option_that_pos_does_not_take_is_refused_at_once(name, pos, option, value, takers):
    with pytest.raises(ValueError, match=f"^encoder_conf: {option} = {value!r} .*{pos}") as error:
        make(name, pos, **{option: value})
    assert takers in str(error.value)
    assert "leave it out" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seconds", [0.02, math.inf])
@pytest.mark.parametrize("pos", ["abspos", "relpos"])
@every_encoder
def test_a_table_without_a_frame_is_refused(name, pos, seconds):
    least = 0.03 if name == "cape_transformer" else 0.04
    says = f"encoder_conf: {pos}_context must be seconds ≥ {least}, "
    with pytest.raises(ValueError, match=says):
        make(name, pos, **{f"{pos}_context": seconds})


@every_encoder
def test_inputs_that_do_not_fit_are_refused(name):
    encoder = make(name)
    features, lengths = batch(50, 31)
    nan_in_speech = frame_times(lengths, 0.01, 50)
    nan_in_speech[1, 30] = math.nan
    for given, times, says in (
        (lengths[:1], None, r"ilens must be \(2,\)"),
        (lengths, torch.zeros(2, 17), r"times must be \(2, 50\)"),
        (lengths + torch.tensor([1, 0]), None, r"ilens must lie in \[0, T=50\], got 51"),
        (lengths, torch.full((2, 50), math.inf), "infinite"),
        (lengths, nan_in_speech, "NaN is for padding only"),
    ):
        with pytest.raises(ValueError, match=says):
            encoder(features, given, times=times)
