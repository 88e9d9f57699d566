"""--pos random: sorted random positions in training, spread or as given in evaluation."""

import pytest
import torch

pytest.importorskip("fairseq")

from cape_plugins.fairseq.config import CapeTransformerConfig, check_options

PAD, EOS = 1, 2
SOURCE = torch.tensor([[PAD, 5, 6, EOS], [8, 9, 5, EOS]])
TARGET = torch.tensor([[EOS, 10, 11], [EOS, 14, PAD]])
NAN = float("nan")


def test_training_draws_sorted_positions_of_each_sentence_and_side(build, seen_positions):
    model = build("random", train=True, random_range=100.0)
    model(SOURCE, None, TARGET)
    source, target = seen_positions
    for positions, tokens in ((source, SOURCE), (target, TARGET)):
        assert torch.equal(positions.isnan(), tokens.eq(PAD))
        for row in positions:
            row = row[~row.isnan()]
            assert (row.diff() > 0).all()
            assert 0 <= row[0] <= row[-1] <= 100
    assert not torch.equal(source[0, 1:], source[1, 1:])
    assert not torch.equal(source[1, 1:], target[0])


def test_evaluation_spreads_the_source_and_counts_the_target(build, seen_positions):
    model = build("random", random_range=100.0)
    model(SOURCE, None, TARGET)
    source, target = seen_positions
    expected = torch.tensor([[NAN, 25, 50, 75], [20, 40, 60, 80]])
    torch.testing.assert_close(source, expected, equal_nan=True)
    expected = torch.tensor([[0.0, 1, 2], [0, 1, NAN]])
    torch.testing.assert_close(target, expected, equal_nan=True)


def test_attention_sees_the_same_draw_in_all_layers(build):
    model = build("random_rope", train=True)
    layers = model.encoder.layers
    model(SOURCE, None, TARGET)
    first = model.encoder.current.positions
    assert layers[0].self_attn.current is layers[1].self_attn.current is model.encoder.current
    model(SOURCE, None, TARGET)
    assert not torch.equal(first, model.encoder.current.positions)


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, float("inf")])
def test_a_range_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="random_range must be finite and > 0, in tokens, got"):
        check_options({"pos": "random", "random_range": value}, CapeTransformerConfig())


def test_other_variants_refuse_its_range():
    with pytest.raises(ValueError, match=r"--random-range = 50\.0 is for random, random_rope;"):
        check_options({"pos": "cape", "random_range": 50.0}, CapeTransformerConfig())
