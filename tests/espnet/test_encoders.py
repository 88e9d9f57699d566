"""What our four encoders do, each with every ``pos`` of the table, and with ESPnet's own."""

import math

import pytest
import torch
from espnet2.bin import asr_inference
from espnet2.main_funcs.calculate_all_attentions import calculate_all_attentions
from torch import nn

from cape_plugins import variants
from cape_plugins.augment import AsGiven
from cape_plugins.places import frame_times
from espnet_support import (
    assert_alone,
    batch,
    every_encoder,
    make,
    matrix,
    table,
)


@matrix
def test_forward_and_backward_reach_the_input_and_every_parameter(name, pos):
    for options in ({}, {"normalize_before": False} if name == "cape_transformer" else {}):
        encoder = make(name, pos, perturb=False, **options)
        features, lengths = batch(50, 44)
        features.requires_grad_()
        out, olens, states = encoder(features, lengths, None)
        frames = [17, 15] if name == "cape_transformer" else [11, 10]
        assert (out.shape, olens.tolist(), states) == ((2, frames[0], 16), frames, None)
        assert encoder.output_size() == 16
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
        (out * weights).sum().backward()
        assert features.grad.any()
        silent = [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
        assert silent == []


# --- padding


@pytest.mark.parametrize("pos", ["cape", "relpos", "relpos_first", "espnet_rel_pos"])
@every_encoder
def test_a_padded_utterance_gives_the_result_it_gives_alone(name, pos):
    """Beyond relpos' context; CHECKS have every variant in two of the encoders."""
    options = {"relpos_context": 0.3} if pos.startswith("relpos") else {}
    assert_alone(make(name, pos, **options).eval(), *batch(163, 120, 118, 7))


@every_encoder
def test_what_lies_in_the_padding_does_not_matter(name):
    encoder = make(name).eval()
    features, lengths = batch(60, 40)
    times = frame_times(lengths, 0.01, 60)
    clean, olens, _ = encoder(features, lengths, times=times)
    for garbage in (1e6, math.nan):
        features[1, 40:], times[1, 40:] = garbage, -garbage
        dirty, _, _ = encoder(features, lengths, times=times)
        assert dirty[1, : olens[1]].equal(clean[1, : olens[1]])
        assert dirty.isfinite().all()


@every_encoder
def test_an_empty_utterance_disturbs_nothing(name):
    for pos in ("cape", "relpos"):
        encoder = make(name, pos)
        out, olens, _ = encoder(batch(30, 30)[0], torch.tensor([30, 0]))
        assert olens[1] == 0
        out.sum().backward()
        assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize(("frames", "lengths"), [(6, [6, 6]), (0, [0, 0])])
@every_encoder
def test_no_frame_is_what_espnets_decoding_calls_too_short(name, frames, lengths):
    encoder, inputs = make(name), (torch.zeros(2, frames, 20), torch.tensor(lengths))
    if name == "cape_transformer" and lengths[0]:  # which pads
        assert encoder(*inputs)[1].tolist() == [2, 2]
        return
    with pytest.raises(asr_inference.TooShortUttError, match="frames"):
        encoder(*inputs)


# --- training and evaluation


@matrix
def test_evaluation_is_deterministic_and_training_random_where_it_augments(name, pos):
    encoder = make(name, pos).eval()
    inputs = batch(40, 30)
    assert encoder(*inputs)[0].equal(encoder(*inputs)[0])
    augments = pos != "espnet_rel_pos" and variants.get(pos, axes=1).augments is not AsGiven
    encoder.train()
    assert encoder(*inputs)[0].equal(encoder(*inputs)[0]) is not augments


@every_encoder
def test_each_dropout_acts_in_training_only(name):
    rates = ["dropout_rate", "positional_dropout_rate", "attention_dropout_rate"]
    for rate in [*rates, *(["conv_dropout_rate"] if name == "cape_transformer" else [])]:
        encoder = make(name, "relpos", **{rate: 0.5})
        inputs = batch(40)
        assert not encoder.train()(*inputs)[0].equal(encoder(*inputs)[0])
        assert encoder.eval()(*inputs)[0].equal(encoder(*inputs)[0])


@matrix
def test_under_autocast_the_result_stays_close_an_hour_into_the_recording(name, pos):
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


@pytest.mark.parametrize(
    ("name", "pos", "training"),
    [
        ("cape_conformer", "cape_alibi", True),  # ESPnet's draws in the others break the graph
        ("cape_e_branchformer", "cape", False),
    ],
)
def test_compiles_into_one_graph(name, pos, training):
    torch.compiler.reset()
    encoder = make(name, pos, num_blocks=1)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    inputs = batch(30, 20)
    if training:
        compiled(*inputs)[0].sum().backward()
    compiled.eval(), encoder.eval()
    torch.testing.assert_close(compiled(*inputs)[0], encoder(*inputs)[0])


@pytest.mark.parametrize(
    ("name", "pos"), [("cape_transformer", "rope"), ("cape_conformer", "cape")]
)
def test_exports_with_any_number_of_utterances_and_frames(name, pos):
    encoder, auto = make(name, pos, num_blocks=1).eval(), torch.export.Dim.AUTO
    shapes = {"xs_pad": {0: auto, 1: auto}, "ilens": {0: auto}}
    program = torch.export.export(encoder, batch(50, 31), dynamic_shapes=shapes, strict=False)
    longer = batch(80, 61, 44)
    torch.testing.assert_close(program.module()(*longer)[0], encoder(*longer)[0])


@pytest.mark.parametrize("pos", ["abspos", "relpos_first", "espnet_rel_pos"])
@every_encoder
def test_a_checkpoint_restores_every_parameter_and_knows_its_pos(name, pos):
    """ESPnet loads with strict=False, so a key that changed would be lost in silence."""
    saved = make(name, pos).eval()
    restored = make(name, pos, perturb=False).eval()
    for parameter in restored.parameters():
        nn.init.zeros_(parameter)
    restored.load_state_dict(saved.state_dict())
    inputs = batch(50, 31)
    assert restored(*inputs)[0].equal(saved(*inputs)[0])
    if pos != "espnet_rel_pos":
        with pytest.raises((ValueError, RuntimeError)):
            make(name, "nopos").load_state_dict(saved.state_dict())


# --- ESPnet's pictures of attention


class Recorded(nn.Module):
    """A model that is called with a batch, as ESPnet's pictures of attention need it."""

    def __init__(self, encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, speech, speech_lengths):
        self.encoder(speech, speech_lengths)


@table
def test_espnets_pictures_are_of_the_weights_in_use(name, pos):
    encoder = make(name, pos).eval()
    features, lengths = batch(60, 40)
    given = {"speech": features, "speech_lengths": lengths}
    found = calculate_all_attentions(Recorded(encoder), given)
    many, few = (20, 14) if name == "cape_transformer" else (14, 9)
    assert len(found) == 2
    for seen in found.values():
        assert [tuple(one.shape) for one in seen] == [(2, many, many), (2, few, few)]
        torch.testing.assert_close(seen[1].sum(dim=2), torch.ones(2, few))
    # the values that they mix are what attention makes without a picture
    key = next(iter(found))
    attention = encoder.get_submodule(key.removeprefix("encoder."))
    inside = []
    positional = attention.positional.register_forward_hook(
        lambda _, given, made: inside.append((given[2], made[0]))
    )
    attention.attn = None
    encoder(features[1:, :40], lengths[1:])
    positional.remove()
    (value, mixed), *_ = inside
    torch.testing.assert_close(found[key][1] @ value[0], mixed[0])
    assert attention.attn is None  # nobody asked
