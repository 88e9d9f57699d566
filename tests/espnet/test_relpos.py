"""``pos: relpos`` and ``relpos_first``: which layers know distances, how far, and in which tables.

Attention itself is compared with its formula in tests/test_attention.py.
"""

import pytest
import torch

pytest.importorskip("espnet2")

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import Cape
from cape_plugins.espnet.encoder import CapeTransformerEncoder
from cape_plugins.positions import frame_times

FEATURES = 20


def make(pos: str = "relpos", **options) -> CapeTransformerEncoder:
    torch.manual_seed(0)
    sizes = dict(output_size=32, attention_heads=4, linear_units=64, num_blocks=3)
    return CapeTransformerEncoder(FEATURES, pos=pos, **{**sizes, **options}).eval()


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


def tables(encoder: CapeTransformerEncoder) -> dict[str, tuple[int, ...]]:
    return {n: tuple(p.shape) for n, p in encoder.named_parameters() if "relative" in n}


def test_relpos_has_one_table_a_layer_shared_by_its_heads():
    keys = {f"layers.{layer}.attention.relative.keys": (2 * 893 + 1, 8) for layer in range(3)}
    assert tables(make("relpos")) == keys  # 26.8 s of 30 ms, 32 channels in 4 heads


def test_relpos_first_has_one_in_the_first_layer():
    assert tables(make("relpos_first")) == {"layers.0.attention.relative.keys": (2 * 920 + 1, 8)}


def test_the_other_variants_have_none():
    for pos in ("nopos", "sinpos", "abspos", "cape"):
        assert tables(make(pos)) == {}


@pytest.mark.parametrize("pos", ["relpos", "relpos_first"])
@pytest.mark.parametrize(
    ("seconds", "frame_shift", "frames"),
    [(6, 0.01, 200), (6.0, 0.016, 125), (0.1, 0.01, 3), (0.03, 0.01, 1)],
)
def test_the_context_is_given_in_seconds(pos, seconds, frame_shift, frames):
    encoder = make(pos, relpos_context=seconds, frame_shift=frame_shift)
    assert encoder.layers[0].attention.relative.context == frames


def test_values_have_a_table_on_request():
    shapes = tables(make("relpos_first", relpos_values=True, relpos_context=6))
    assert shapes == {
        "layers.0.attention.relative.keys": (401, 8),
        "layers.0.attention.relative.values": (401, 8),
    }


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("pos", ["relpos", "relpos_first"])
def test_distances_are_all_that_it_knows_beyond_nopos(pos, values):
    """No absolute embedding: with empty tables it is nopos."""
    relpos, nopos = make(pos, relpos_values=values), make("nopos")
    state = relpos.state_dict()
    nopos.load_state_dict({k: state[k] for k in nopos.state_dict() if "mark" not in k})
    inputs = batch(90, 70)
    assert not torch.allclose(relpos(*inputs)[0], nopos(*inputs)[0], atol=1e-3)
    with torch.no_grad():
        for name, table in relpos.named_parameters():
            if "relative" in name:
                table.zero_()
    torch.testing.assert_close(relpos(*inputs)[0], nopos(*inputs)[0])


def test_distances_beyond_the_context_count_as_the_last():
    short, long = make(relpos_context=0.15), make(relpos_context=0.6)  # 5 and 20 frames
    weights = short.state_dict()
    for name, table in list(weights.items()):
        if "relative" in name:
            first, last = table[:1].expand(15, -1), table[-1:].expand(15, -1)
            weights[name] = torch.cat([first, table, last])
    long.load_state_dict(weights)
    inputs = batch(60, 50)  # 20 and 17 frames after the convolution
    torch.testing.assert_close(short(*inputs)[0], long(*inputs)[0])


@pytest.mark.parametrize("values", [False, True])
def test_a_padded_utterance_gives_the_result_it_gives_alone_beyond_the_context_too(values):
    encoder = make(relpos_context=0.3, relpos_values=values)
    features, lengths = batch(163, 120, 2)
    out, olens, _ = encoder(features, lengths)
    for index, length in enumerate(lengths.tolist()):
        alone, _, _ = encoder(features[index, None, :length], lengths[index, None])
        torch.testing.assert_close(out[index, : olens[index]], alone[0], rtol=1e-5, atol=1e-5)


def test_attention_dropout_acts_in_training_only():
    encoder = make(attention_dropout_rate=0.5, dropout_rate=0, conv_dropout_rate=0)
    encoder.layer_drop_rate = 0
    inputs = batch(40)
    assert encoder(*inputs)[0].equal(encoder(*inputs)[0])
    encoder.train()
    assert not encoder(*inputs)[0].equal(encoder(*inputs)[0])


def test_a_short_utterance_trains_the_distances_it_has():
    encoder = make("relpos_first", relpos_context=0.3).train()  # 10 frames to each side
    out, _, _ = encoder(*batch(12))  # 4 frames
    out.square().sum().backward()
    used = encoder.layers[0].attention.relative.keys.grad.abs().sum(dim=1) > 0
    assert used.tolist() == [abs(distance) <= 3 for distance in range(-10, 11)]


@pytest.mark.parametrize("init", ["xavier_uniform", "kaiming_normal"])
@pytest.mark.parametrize("pos", ["abspos", "relpos", "relpos_first"])
def test_espnets_init_leaves_learnable_positions_as_the_authors_draw_them(pos, init):
    from espnet2.torch_utils.initialize import initialize

    takes_values = "relpos_values" in variants.get(pos).options
    encoder = make(pos, **({"relpos_values": True} if takes_values else {}))
    before = encoder.layers[0].attention.qkv.weight.clone()
    initialize(encoder, init)
    assert not encoder.layers[0].attention.qkv.weight.equal(before)
    drawn = [p for n, p in encoder.named_parameters() if "relative" in n or "table" in n]
    assert drawn
    for table in drawn:
        assert 0.095 < table.abs().max() <= 0.1
        assert table.mean().abs() < 0.01


# --- any attention of the table of variants


def test_self_attention_gets_seconds_after_the_convolution_not_augmented_and_nan_in_padding():
    encoder = make("relpos", frame_shift=0.02).train()
    seen = []
    for layer in encoder.layers:
        layer.attention.relative.register_forward_pre_hook(lambda _, given: seen.append(given[3]))
    features, lengths = batch(50, 31)
    encoder(features, lengths, times=2 * frame_times(lengths, 0.01, 50) + 7)
    expected = 7 + frame_times(torch.tensor([17, 11]), 0.06, 17)
    assert len(seen) == 3
    for positions in seen:
        torch.testing.assert_close(positions, expected, equal_nan=True)


def test_a_row_of_the_table_is_a_pos_of_the_encoder(new_variant):
    encoder, nopos = make(new_variant, frame_shift=0.1), make("nopos", frame_shift=0.1)
    features, lengths = batch(163, 120, 2)
    out, olens, _ = encoder(features, lengths)
    assert not torch.allclose(out, nopos(features, lengths)[0], atol=1e-3)
    for index, length in enumerate(lengths.tolist()):
        alone, _, _ = encoder(features[index, None, :length], lengths[index, None])
        torch.testing.assert_close(out[index, : olens[index]], alone[0], rtol=1e-5, atol=1e-5)
    later = encoder(features, lengths, times=frame_times(lengths, 0.1, 163) + 60)[0]
    torch.testing.assert_close(later, out, rtol=1e-4, atol=1e-4)
    slower = encoder(features, lengths, times=frame_times(lengths, 0.2, 163))[0]
    assert not torch.allclose(slower, out, atol=1e-3)


def test_all_layers_see_the_same_augmented_seconds_of_each_utterance(monkeypatch):
    seen = []

    class Sees(PositionalAttention):
        def logits(self, query, keys, positions=None):
            seen.append(positions)

    row = variants.Variant(
        99, "nothing", Cape, lambda _: Sees(), axes=(1,), options=variants.get("cape").options
    )
    monkeypatch.setitem(variants.VARIANTS, "augmented", row)
    encoder = make("augmented", max_local_shift=0.0, max_global_scale=2.0).train()
    features, lengths = batch(50, 31)
    encoder(features, lengths)
    assert len(seen) == 3
    assert torch.equal(seen[0].isnan(), torch.arange(17) >= torch.tensor([[17], [11]]))
    for positions in seen:
        torch.testing.assert_close(positions, seen[0], rtol=0, atol=0, equal_nan=True)
    spacing = seen[0].diff(dim=1) / 0.03  # λ of each utterance
    torch.testing.assert_close(spacing[0], spacing[:1, 0].expand(16), rtol=1e-3, atol=0)
    assert 0.5 < spacing[0, 0] != spacing[1, 0] < 2
    encoder.eval()(features, lengths)
    torch.testing.assert_close(seen[-1].diff(dim=1)[1, :10], torch.full((10,), 0.03))
