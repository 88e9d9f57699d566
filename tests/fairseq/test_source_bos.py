"""The source begins with BOS where that applies, inserted by the model."""

import pytest
import torch

from cape_plugins.fairseq.positions import prepend_bos

BOS, PAD, EOS = 0, 1, 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [[5, 6, EOS, PAD], [PAD, PAD, 7, EOS], [4, 5, 6, EOS]],
            [[BOS, 5, 6, EOS, PAD], [PAD, PAD, BOS, 7, EOS], [BOS, 4, 5, 6, EOS]],
        ),
        (
            [[BOS, 5, EOS, PAD], [PAD, BOS, 7, EOS]],
            [[PAD, BOS, 5, EOS, PAD], [PAD, PAD, BOS, 7, EOS]],
        ),
        ([[EOS, PAD], [PAD, EOS]], [[BOS, EOS, PAD], [PAD, BOS, EOS]]),
    ],
    ids=["padding on either side", "never twice", "empty sentences"],
)
def test_bos_comes_before_the_first_real_token(rows, expected):
    assert prepend_bos(torch.tensor(rows), bos=BOS, padding_idx=PAD)[0].tolist() == expected


@pytest.mark.parametrize(
    ("pos", "source_bos", "columns"),
    [("cape", "auto", 5), ("cape", "false", 4), ("sinpos", "auto", 4), ("sinpos", "true", 5)],
)
def test_auto_means_for_cape_only(build, pos, source_bos, columns):
    out = build(pos, source_bos=source_bos).encoder(torch.tensor([[5, 6, 7, EOS]]))
    assert out["encoder_out"][0].shape[0] == columns


@pytest.mark.parametrize("padding", [[], [PAD, PAD]])
def test_a_source_that_has_bos_gives_what_it_gives_without(build, padding):
    model, target = build("cape"), torch.tensor([[EOS, 10, 11]])
    without = model(torch.tensor([[*padding, 5, 6, EOS]]), None, target)[0]
    with_bos = model(torch.tensor([[*padding, BOS, 5, 6, EOS]]), None, target)[0]
    torch.testing.assert_close(with_bos, without, rtol=0, atol=1e-5)


def test_given_token_embeddings_get_that_of_bos(build):
    model = build("cape")
    tokens = torch.tensor([[PAD, 5, 6, EOS]])
    given = model.encoder(tokens, token_embeddings=model.encoder.embed_tokens(tokens))
    looked_up = model.encoder(tokens)
    torch.testing.assert_close(given["encoder_out"][0], looked_up["encoder_out"][0])


def test_attention_to_the_source_leaves_bos_out(build):
    # else --print-alignment and --replace-unk would be off by one
    model = build("cape")
    source = torch.tensor([[PAD, 5, 6, EOS], [5, 6, EOS, PAD]])
    _, extra = model(source, None, torch.tensor([[EOS, 10, 11], [EOS, 12, 13]]))
    (attention,) = extra["attn"]
    assert attention.shape == (2, 3, 4)
    assert (attention[1] > 0).all(dim=0).tolist() == [True, True, True, False]
