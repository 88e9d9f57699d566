"""Positions of our encoders are seconds of frames: where a frame is, how far, in which unit."""

import math

import pytest
import torch
from espnet2.torch_utils.initialize import initialize
from torch import nn

from cape_plugins.alibi import alibi_slopes
from cape_plugins.places import frame_times
from cape_plugins.relpos import RelativePositions, RelativePositionsFirst
from cape_plugins.variants import TABLE, Registered, Variant
from espnet_support import batch, every_encoder, make, matrix, table


def watch(encoder) -> list:
    """Fills with what each forward adds positions to: content and seconds after subsampling."""
    seen = []
    encoder.positions.register_forward_pre_hook(lambda _, given: seen.append(given[:2]))
    return seen


# --- given, or counted


@matrix
def test_times_count_and_without_them_the_frame_shift(name, pos):
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.02, 50, dtype=torch.float64)
    options = {"fire_unit": 1 / 30} if "fire" in pos else {}  # by default a frame
    at_20_ms = make(name, pos, **options, frame_shift=0.02).eval()
    options |= {"max_local_shift": 0.0} if "cape" in pos else {}
    at_10_ms = make(name, pos, **options).eval()
    weights = {k: v for k, v in at_10_ms.state_dict().items() if "mark" not in k}
    if any(weights[k].shape != v.shape for k, v in at_20_ms.named_parameters()):
        at_10_ms = at_20_ms  # contexts in seconds make tables of another size
    else:
        at_20_ms.load_state_dict(weights, strict=False)
    assert at_10_ms(features, lengths, times=times)[0].equal(at_20_ms(features, lengths)[0])


@matrix
def test_each_utterances_clock_may_start_late_but_for_absolute_positions(name, pos):
    encoder = make(name, pos).eval()
    features, lengths = batch(50, 31)
    times = frame_times(lengths, 0.01, 50, dtype=torch.float64)
    now, olens, _ = encoder(features, lengths, times=times)
    later = encoder(features, lengths, times=times + torch.tensor([[100.0], [7.0]]))[0]
    for row, length in enumerate(olens):
        same = torch.allclose(now[row, :length], later[row, :length], atol=1e-3)
        assert same is (pos not in ("sinpos", "abspos"))


@pytest.mark.parametrize("pos", ["sinpos", "cape", "rope", "alibi", "random", "random_rope"])
def test_a_clock_that_goes_slow_or_unevenly_counts_but_for_random(pos):
    encoder = make(pos=pos, frame_shift=0.1).eval()
    features, lengths = batch(163, 120)
    out = encoder(features, lengths)[0]
    slow = frame_times(lengths, 0.2, 163, dtype=torch.float64)
    for times in (slow, slow**2 + 7):
        found = encoder(features, lengths, times=times)[0]
        assert torch.allclose(found, out, rtol=1e-4, atol=1e-4) is ("random" in pos)


# --- after subsampling


def test_the_transformer_has_a_frame_for_every_three_begun():
    encoder = make().eval()
    seen = watch(encoder)
    for frames in range(1, 12):
        out, olens, _ = encoder(*batch(frames))
        assert out.shape[1] == olens.max() == math.ceil(frames / 3)
        assert out.isfinite().all()
        torch.testing.assert_close(seen[-1][1][0], 0.03 * torch.arange(len(out[0])).double())


@pytest.mark.parametrize(
    ("input_layer", "frames"),  # of 61
    [
        *[("linear", 61), ("conv2d", 14), ("conv2d1", 57), ("conv2d2", 28), ("conv2d6", 9)],
        *[("conv2d8", 6), ("conv1d1", 57), ("conv1d2", 29), ("conv1d3", 19)],
    ],
)
def test_a_frame_is_where_the_middle_of_what_its_convolutions_see_is(input_layer, frames):
    encoder = make("cape_e_branchformer", "sinpos", input_layer=input_layer, num_blocks=1)
    features, lengths = batch(61)
    features.requires_grad_()
    seen = watch(encoder)
    encoder.eval()(features, lengths, times=frame_times(lengths, 0.02) + 5)
    ((content, seconds),) = seen
    assert content.shape[1] == frames
    for frame in (0, content.shape[1] // 2, content.shape[1] - 1):
        (gradient,) = torch.autograd.grad(
            content[0, frame].square().sum(), features, retain_graph=True
        )
        (sees,) = gradient[0].abs().sum(dim=1).nonzero(as_tuple=True)
        middle = 5 + 0.02 * (sees[0] + sees[-1]).item() / 2
        assert seconds[0, frame].item() == pytest.approx(middle)


@every_encoder
def test_content_is_multiplied_by_its_scale_before_positions_are_added(name):
    own = {"content_scale": None}, 1.0 if name == "cape_transformer" else 4.0  # √16 channels
    given = ({"content_scale": 8}, 8.0), ({"content_scale": "sqrt"}, 4.0)
    for options, scale in (({}, own[1]), own, *given):
        plain, scaled = (make(name, **given).eval() for given in (dict(content_scale=1.0), options))
        (*_, last) = (m for m in plain.embed.modules() if isinstance(m, (nn.Conv1d, nn.Linear)))
        # the other half of the convolution's channels are the gates of its GLU
        content = len(last.weight) // 2 if isinstance(last, nn.Conv1d) else len(last.weight)
        for parameter in last.parameters():
            parameter.data[:content] *= scale
        inputs = batch(61, 40)
        torch.testing.assert_close(scaled(*inputs)[0], plain(*inputs)[0], rtol=1e-5, atol=1e-5)


def test_options_are_in_seconds_after_subsampling():
    for name, stride in (("cape_transformer", 3), ("cape_e_branchformer", 4)):
        found = make(name, frame_shift=0.02).positions.options
        assert found["max_local_shift"] == pytest.approx(0.01 * stride)  # half of stride × 20 ms
        given = make(name, frame_shift=0.02, max_local_shift=0.01).positions.options
        assert given["max_local_shift"] == 0.01
        table = make(name, "abspos", abspos_context=0.12 * stride, perturb=False).positions.added
        assert table.table.shape == (12, 16)
        assert 0.08 < table.table.abs().max() <= 0.1
        assert round(13.8 / stride * 100) == len(make(name, "abspos").positions.added.table)
        for pos, seconds in (("relpos", 26.8), ("relpos_first", 27.6)):
            for given in (seconds, 0.6, 0.11):
                options = {} if given == seconds else {"relpos_context": given}
                frames = round(given / (0.01 * stride))
                modules = make(name, pos, **options).modules()
                found = [m.context for m in modules if isinstance(m, RelativePositions)]
                assert found == [frames] * (2 if pos == "relpos" else 1)


def test_another_packages_relpos_of_the_first_layer_has_that_ones_context(monkeypatch):
    class Mine(RelativePositionsFirst):
        pass

    row = Registered(Variant(attends=Mine, axes=(1,)), "cape_plugins")
    monkeypatch.setitem(TABLE[1], "mine", row)
    assert make("cape_transformer", "mine").positions.options["relpos_context"] == 27.6


@pytest.mark.parametrize("pos", ["abspos", "relpos"])
@every_encoder
def test_espnets_init_leaves_learnable_positions_as_the_authors_draw_them(name, pos):
    encoder = make(name, pos)
    initialize(encoder, "xavier_uniform")
    drawn = [p for n, p in encoder.named_parameters() if "positional" in n or "table" in n]
    assert len(drawn) == (2 if pos == "relpos" else 1)
    for each in drawn:
        assert 0.09 < each.abs().max() <= 0.1
        assert each.mean().abs() < 0.01


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
    assert len(caplog.messages) == warned
    if warned:
        assert "21 s" in caplog.text
        assert "max_global_shift" in caplog.text


@pytest.mark.parametrize(
    ("pos", "shift", "warned"),
    [("cape", 0.02, True), ("cape", 0.015, False), ("cape", None, False), ("nopos", None, False)],
)
def test_a_local_shift_beyond_half_a_frame_is_warned_of(pos, shift, warned, caplog):
    make(pos=pos, max_local_shift=shift)
    assert len(caplog.messages) == warned
    assert not warned or "max_local_shift" in caplog.text


# --- references: what the formulas give


@pytest.mark.parametrize(("pos", "given"), [("sinpos", False), ("cape", True)])
def test_an_hour_of_frames_is_embedded_within_2e_6_end_to_end(pos, given):
    encoder = make(pos=pos).eval()
    encoder.encoders = torch.nn.ModuleList()  # attention over 120 000 frames is not the question
    seen = []
    encoder.positions.register_forward_hook(lambda _, given, made: seen.append(made[0] - given[0]))
    for parameter in encoder.embed.parameters():  # content of 0
        nn.init.zeros_(parameter)
    features, lengths = torch.zeros(1, 360_000, 20), torch.tensor([360_000])
    times = frame_times(lengths, 0.01, dtype=torch.float64) if given else None
    encoder(features, lengths, times=times)
    embedded = seen[0][0]
    exact = torch.arange(120_000, dtype=torch.float64) * 3 / 100
    if pos == "cape":
        exact = exact - 119_999 * 3 / 200
    frequencies = 30 * 10_000 ** (-2 * torch.arange(8, dtype=torch.float64) / 16)
    phases = exact[:, None] * frequencies
    expected = torch.cat([phases.cos(), phases.sin()], dim=1)
    assert (embedded.double() - expected).abs().max() < 2e-6


def test_alibi_counts_distances_in_thirtieths_of_a_second():
    encoder, given = make(pos="alibi").eval(), []
    encoder.positions.register_forward_hook(lambda _, inputs, made: given.append(made[1]))
    features, lengths = batch(9)
    encoder(features, lengths, times=frame_times(lengths, 0.05))  # output frames 150 ms apart
    bias = given[0].bias  # one for all layers
    expected = -alibi_slopes(2) * 0.15 * 30
    torch.testing.assert_close(bias[0, :, 0, 1], expected)
    torch.testing.assert_close(bias[0, :, 2, 0], 2 * expected)


# --- all layers of a forward get the same, and each process its own


@table
def test_what_attention_gets_is_made_once_for_all_layers(name, pos):
    encoder, made, given = make(name, pos), [], []
    encoder.positions.register_forward_hook(lambda _, inputs, out: made.append(out[1]))
    for layer in encoder.encoders:
        attention = layer.attn if hasattr(layer, "attn") else layer.self_attn
        attention.positional.register_forward_pre_hook(lambda _, inputs: given.append(inputs[3]))
    encoder(*batch(50, 31))
    assert len(given) == 2
    assert all(each is made[0] for each in given)
