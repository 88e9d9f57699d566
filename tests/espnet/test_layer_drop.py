"""Layer drop drops: ESPnet's own TransformerEncoder takes ``layer_drop_rate`` and ignores it."""

import pytest
import torch

pytest.importorskip("espnet2")

from cape_plugins.espnet.encoder import CapeTransformerEncoder

FEATURES = 20


def make(**options) -> CapeTransformerEncoder:
    torch.manual_seed(0)
    sizes = dict(output_size=16, attention_heads=2, linear_units=32, pos="sinpos")
    quiet = dict(dropout_rate=0, attention_dropout_rate=0, conv_dropout_rate=0)
    return CapeTransformerEncoder(FEATURES, **{**sizes, **quiet, **options}).train()


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


def without_parts(encoder: CapeTransformerEncoder, inputs) -> torch.Tensor:
    """What is left of a one-layer encoder whose layer is dropped."""
    seen = []
    hook = encoder.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    encoder(*inputs)
    hook.remove()
    layer = encoder.layers[0]
    if layer.normalize_before:
        return encoder.after_norm(seen[0])
    return layer.norm_feed_forward(layer.norm_attention(seen[0]))


@pytest.mark.parametrize("normalize_before", [True, False])
def test_as_many_layers_are_dropped_as_the_rate_says_and_only_norms_are_left(normalize_before):
    encoder = make(num_blocks=1, layer_drop_rate=0.4, normalize_before=normalize_before)
    inputs = batch(9)
    with torch.no_grad():
        dropped = without_parts(encoder, inputs)
        kept = encoder.eval()(*inputs)[0]
        encoder.train()
        outs = [encoder(*inputs)[0] for _ in range(600)]
    assert not torch.allclose(kept, dropped, atol=1e-3)
    drops = sum(out.equal(dropped) for out in outs)
    assert sum(out.equal(kept) for out in outs) == 600 - drops
    assert 240 - 48 <= drops <= 240 + 48  # 4 standard deviations


def test_each_layer_is_drawn_for_itself_and_the_whole_batch_at_once():
    encoder = make(num_blocks=2, layer_drop_rate=0.5)
    features, lengths = batch(9)
    features, lengths = features.expand(5, -1, -1), lengths.expand(5)
    different = []
    with torch.no_grad():
        for _ in range(60):
            out, _, _ = encoder(features, lengths)
            torch.testing.assert_close(out, out[:1].expand_as(out))
            if not any(torch.allclose(out, other, atol=1e-4) for other in different):
                different.append(out)
    assert len(different) == 4  # both kept, either one, none


def test_evaluation_keeps_every_layer_and_rescales_nothing():
    dropping, plain = make(num_blocks=3, layer_drop_rate=0.9), make(num_blocks=3, layer_drop_rate=0)
    inputs = batch(30, 20)
    assert dropping.eval()(*inputs)[0].equal(plain.eval()(*inputs)[0])


def test_the_seed_decides_what_is_dropped():
    encoder = make(num_blocks=6, layer_drop_rate=0.5)
    inputs = batch(30)
    outs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outs.append(encoder(*inputs)[0])
    assert outs[0].equal(outs[1])
    assert not outs[0].equal(outs[2])


@pytest.mark.parametrize("normalize_before", [True, False])
def test_a_dropped_layer_gets_gradients_of_zero_rather_than_none(normalize_before):
    encoder = make(num_blocks=1, layer_drop_rate=0.999999, normalize_before=normalize_before)
    out, _, _ = encoder(*batch(30, 20))
    (out * torch.randn(out.shape)).sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
    layer = encoder.layers[0]
    for part in (layer.attention, layer.feed_forward):
        assert not any(p.grad.any() for p in part.parameters())
    if not normalize_before:  # the norms go on running
        assert layer.norm_attention.weight.grad.any()
        assert layer.norm_feed_forward.weight.grad.any()
    assert encoder.front.conv.weight.grad.any()


def test_in_half_precision_the_dtype_stays():
    encoder = make(num_blocks=2, layer_drop_rate=0.5).bfloat16()
    features, lengths = batch(30, 20)
    assert encoder(features.bfloat16(), lengths)[0].dtype == torch.bfloat16


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("pos", ["cape", "relpos"])
def test_ddp_finds_every_parameter_used_at_every_step(process_group, pos):
    """Else its next forward raises; ESPnet leaves ``find_unused_parameters`` off."""
    encoder = make(num_blocks=4, layer_drop_rate=0.5, pos=pos)
    model = torch.nn.parallel.DistributedDataParallel(encoder)
    for _ in range(4):
        model(*batch(30, 20))[0].sum().backward()
