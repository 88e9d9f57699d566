"""Intermediate CTC and self-conditioning, with ESPnet's own CTC and ASR model."""

import pytest
import torch

pytest.importorskip("espnet2")

from espnet2.asr.ctc import CTC

from cape_plugins.espnet.encoder import CapeTransformerEncoder
from cape_plugins.variants import names

FEATURES = 20
TOKENS = ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
VARIANTS = names(1)


def make(**options) -> CapeTransformerEncoder:
    torch.manual_seed(0)
    sizes = dict(output_size=32, attention_heads=4, linear_units=64, num_blocks=3)
    quiet = dict(dropout_rate=0, attention_dropout_rate=0, conv_dropout_rate=0, layer_drop_rate=0)
    return CapeTransformerEncoder(FEATURES, **{**sizes, **quiet, **options})


def conditioned(**options) -> tuple[CapeTransformerEncoder, CTC]:
    encoder = make(interctc_layer_idx=[1, 2], interctc_use_conditioning=True, **options)
    encoder.conditioning_layer = torch.nn.Linear(5, 32)  # as ESPnet's model does
    return encoder, CTC(odim=5, encoder_output_size=32)


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


def model(encoder: CapeTransformerEncoder, **options):
    from espnet2.asr.espnet_model import ESPnetASRModel

    return ESPnetASRModel(
        vocab_size=len(TOKENS),
        token_list=TOKENS,
        frontend=None,
        specaug=None,
        normalize=None,
        preencoder=None,
        encoder=encoder,
        postencoder=None,
        decoder=None,
        ctc=CTC(odim=len(TOKENS), encoder_output_size=encoder.output_size()),
        joint_network=None,
        ctc_weight=1.0,
        report_cer=False,
        report_wer=False,
        **options,
    )


@pytest.mark.parametrize("normalize_before", [True, False])
def test_intermediate_outputs_come_with_their_layers_number(normalize_before):
    inputs = batch(50, 44)
    plain = make(normalize_before=normalize_before).eval()
    encoder = make(normalize_before=normalize_before, interctc_layer_idx=[1, 2]).eval()
    (out, intermediate), olens, states = encoder(*inputs)
    assert [number for number, _ in intermediate] == [1, 2]
    assert states is None
    assert olens.tolist() == [17, 15]
    assert out.equal(plain(*inputs)[0])
    # the output after layer n is that of an encoder which ends there
    for number, after in intermediate:
        plain.layers = make(normalize_before=normalize_before).layers[:number]
        assert after.equal(plain(*inputs)[0])


def test_without_layers_nothing_intermediate_is_returned():
    assert isinstance(make()(*batch(30))[0], torch.Tensor)


@pytest.mark.parametrize("pos", VARIANTS)
def test_backward_through_conditioning_reaches_every_parameter(pos):
    encoder, ctc = conditioned(pos=pos)
    features, lengths = batch(50, 44)
    features.requires_grad_()
    (out, _), _, _ = encoder(features, lengths, ctc=ctc)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    assert features.grad.any()
    assert all(p.grad is not None for p in encoder.parameters())
    assert encoder.conditioning_layer.weight.grad.any()
    assert ctc.ctc_lo.weight.grad.any()


def test_conditioning_adds_what_the_ctc_makes_of_the_layer():
    encoder, ctc = conditioned()
    encoder.eval()
    inputs = batch(50, 44)
    (out, intermediate), _, _ = encoder(*inputs, ctc=ctc)
    first = intermediate[0][1]
    seen = []
    encoder.layers[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    encoder(*inputs, ctc=ctc)
    after_first = []
    encoder.layers[0].register_forward_hook(lambda _, given, x: after_first.append(x))
    encoder(*inputs, ctc=ctc)
    expected = after_first[0] + encoder.conditioning_layer(ctc.softmax(first))
    torch.testing.assert_close(seen[0], expected)
    assert not torch.allclose(out, make().eval()(*inputs)[0], atol=1e-3)


@pytest.mark.parametrize("pos", VARIANTS)
def test_a_padded_utterance_gives_the_result_it_gives_alone(pos):
    encoder, ctc = conditioned(pos=pos)
    encoder.eval()
    features, lengths = batch(163, 120, 2)
    (out, intermediate), olens, _ = encoder(features, lengths, ctc=ctc)
    for index, length in enumerate(lengths.tolist()):
        inputs = features[index, None, :length], lengths[index, None]
        (alone, alone_inside), _, _ = encoder(*inputs, ctc=ctc)
        for batched, single in [
            (out, alone),
            *((b, s) for (_, b), (_, s) in zip(intermediate, alone_inside, strict=True)),
        ]:
            torch.testing.assert_close(
                batched[index, : olens[index]], single[0], rtol=1e-5, atol=1e-5
            )


def test_conditioning_outside_espnets_model_says_what_is_missing():
    encoder, ctc = conditioned()
    with pytest.raises(ValueError, match="needs ctc"):
        encoder(*batch(30))
    encoder.conditioning_layer = None
    with pytest.raises(ValueError, match="needs conditioning_layer"):
        encoder(*batch(30), ctc=ctc)


def test_conditioning_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"interctc_layer_idx=\(\)"):
        make(interctc_use_conditioning=True)


@pytest.mark.parametrize("conditioning", [False, True])
def test_espnets_model_trains_on_the_intermediate_losses(conditioning):
    encoder = make(interctc_layer_idx=[1, 2], interctc_use_conditioning=conditioning)
    asr = model(encoder, interctc_weight=0.5)
    features, lengths = batch(50, 44)
    text, text_lengths = torch.tensor([[2, 3, 2], [3, 2, -1]]), torch.tensor([3, 2])
    loss, stats, _ = asr(features, lengths, text, text_lengths)
    loss.backward()
    inside = (stats["loss_interctc_layer1"] + stats["loss_interctc_layer2"]) / 2
    torch.testing.assert_close(stats["loss"], 0.5 * stats["loss_ctc"] + 0.5 * inside)
    assert stats["loss_interctc_layer1"] != stats["loss_interctc_layer2"]
    assert all(p.grad is not None for p in asr.parameters())


def test_espnets_model_saves_and_restores_the_conditioning_layer():
    def build():
        return model(make(interctc_layer_idx=[1], interctc_use_conditioning=True)).eval()

    saved, restored = build(), build()
    torch.nn.init.normal_(saved.encoder.conditioning_layer.weight)
    restored.load_state_dict(saved.state_dict())  # strict
    inputs = batch(50, 44)
    (out, _), _ = saved.encode(*inputs)
    (again, _), _ = restored.encode(*inputs)
    assert out.equal(again)
