"""encoder_conf attention_logn beside every pos: N are an utterance's frames."""

import math

import pytest
import torch

pytest.importorskip("espnet2")

from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from espnet2.asr.encoder.transformer_encoder import TransformerEncoder

from cape_plugins.espnet.conformer import (
    CapeBranchformerEncoder,
    CapeConformerEncoder,
    CapeEBranchformerEncoder,
)
from cape_plugins.espnet.encoder import CapeTransformerEncoder
from cape_plugins.espnet.layers import SelfAttention, use_logn
from cape_plugins.variants import names

FEATURES = 20
LOGN = {"attention_logn": 10}


def make(pos: str, **options) -> CapeTransformerEncoder:
    torch.manual_seed(0)
    sizes = dict(output_size=32, attention_heads=4, linear_units=64, num_blocks=2)
    encoder = CapeTransformerEncoder(FEATURES, pos=pos, **sizes, **options)
    for layer in encoder.layers:  # queries and keys so large that it matters
        torch.nn.init.normal_(layer.attention.qkv.weight)
    return encoder.eval()


def sharpen(encoder: torch.nn.Module) -> None:
    """Queries and keys of ESPnet's attention so large that it matters."""
    for name, parameter in encoder.named_parameters():
        if "linear_q" in name or "linear_k" in name:
            torch.nn.init.normal_(parameter)


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


@pytest.mark.parametrize("pos", names(1))
def test_a_padded_utterance_gives_the_result_it_gives_alone(pos):
    encoder = make(pos, attention_logn=100)
    features, lengths = batch(163, 120, 118, 2)
    out, olens, _ = encoder(features, lengths)
    for index, length in enumerate(lengths.tolist()):
        alone, _, _ = encoder(features[index, None, :length], lengths[index, None])
        torch.testing.assert_close(out[index, : olens[index]], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pos", names(1))
def test_utterances_as_long_as_in_training_are_as_without(pos):
    plain, scaled = make(pos), make(pos, attention_logn=20)
    scaled.load_state_dict(plain.state_dict())
    as_long, longer = batch(60), batch(120)
    torch.testing.assert_close(scaled(*as_long)[0], plain(*as_long)[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(scaled(*longer)[0], plain(*longer)[0], atol=1e-2)


def test_espnets_pictures_show_the_scaled_weights():
    attention = SelfAttention(8, 2, 0.0).eval()
    x, visible = torch.randn(1, 6, 8), torch.ones(1, 1, 1, 6, dtype=torch.bool)
    attention.register_forward_hook(lambda *given: None)
    attention(x, visible)
    plain = attention.attn.log()
    use_logn(attention, 36)
    attention(x, visible)
    # log 6 / log 36 = 1 / 2; log-probabilities differ by a constant of each row
    torch.testing.assert_close(attention.attn.log().diff(), plain.diff() / 2)


def test_a_trained_encoder_is_given_it_for_a_test():
    encoder = make("sinpos")
    inputs = batch(60)
    before = encoder(*inputs)[0]
    use_logn(encoder, 10)
    assert not torch.allclose(encoder(*inputs)[0], before, atol=1e-2)
    use_logn(encoder, 0)
    torch.testing.assert_close(encoder(*inputs)[0], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [1, -100, 33.3, True, math.nan])
def test_what_is_no_number_of_frames_is_refused(value):
    with pytest.raises(ValueError, match="attention_logn must be the number of tokens"):
        make("nopos", attention_logn=value)


def test_another_encoder_is_refused_by_name():
    encoder = ConformerEncoder(FEATURES, output_size=8, attention_heads=2, num_blocks=1)
    with pytest.raises(ValueError, match="no place in ConformerEncoder, whose self-attention is "):
        use_logn(encoder, 100)


@pytest.mark.parametrize("pos", ["nopos", "cape", "rope"])
@pytest.mark.parametrize(
    "kind", [CapeConformerEncoder, CapeEBranchformerEncoder, CapeBranchformerEncoder]
)
def test_a_trained_conformer_is_given_it_for_a_test(kind, pos):
    sizes = dict(pos=pos, output_size=32, attention_heads=4, num_blocks=2)
    plain, scaled = (kind(FEATURES, **sizes, **more).eval() for more in ({}, LOGN))
    sharpen(plain)
    scaled.load_state_dict(plain.state_dict())
    inputs = batch(163, 120)
    before = plain(*inputs)[0]
    expected = scaled(*inputs)[0]
    assert not torch.allclose(expected, before, atol=1e-2)
    use_logn(plain, LOGN["attention_logn"])
    torch.testing.assert_close(plain(*inputs)[0], expected, rtol=1e-4, atol=1e-4)
    use_logn(plain, 0)
    torch.testing.assert_close(plain(*inputs)[0], before, rtol=1e-4, atol=1e-4)


def test_espnets_own_transformer_is_given_it_too():
    encoder = TransformerEncoder(FEATURES, output_size=32, attention_heads=4, num_blocks=1).eval()
    inputs = batch(163)
    before, (frames,), _ = encoder(*inputs)
    use_logn(encoder, int(frames))
    torch.testing.assert_close(encoder(*inputs)[0], before, rtol=1e-4, atol=1e-4)
    sharpen(encoder)
    as_long = encoder(*inputs)[0]
    use_logn(encoder, 5)
    assert not torch.allclose(encoder(*inputs)[0], as_long, atol=1e-2)
