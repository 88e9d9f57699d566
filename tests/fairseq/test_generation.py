"""fairseq's generator and scorer on our models: what they find is what full decoding gives."""

import pytest
import torch
from fairseq.search import LexicallyConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.token_generation_constraints import pack_constraints

from cape_plugins.variants import names

SOME = pytest.mark.parametrize("pos", ["cape", "relpos", "rope", "cape_alibi"])
PAD, EOS = 1, 2
# padded on the left, as fairseq pads a source
SOURCES = torch.tensor([[4, 9, 6, 7, 8, 11, EOS], [PAD, PAD, PAD, 5, 12, 6, EOS]])
LENGTHS = torch.tensor([7, 4])
PREFIX = torch.tensor([[10, 11], [12, 13]])
WANTED = [[torch.tensor([20, 21]), torch.tensor([15])], [torch.tensor([30])]]


SAMPLE = {"net_input": {"src_tokens": SOURCES, "src_lengths": LENGTHS}}


def generate(models, words, search=None, train=False, **inputs):
    lengths = dict(beam_size=3, max_len_a=0, max_len_b=12, min_len=4)
    generator = SequenceGenerator(models, words, search_strategy=search, **lengths)
    for model in models:
        model.train(train)  # after the generator, which puts models into evaluation when it is made
    return generator.generate(models, SAMPLE, **inputs)


def assert_scores_are_those_of_full_decoding(models, row, hypothesis):
    """Of a translation of a source that is alone, by the mean probability of the models."""
    tokens, source = hypothesis["tokens"], SOURCES[row : row + 1, -LENGTHS[row] :]
    before = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
    probabilities = [
        model(source, LENGTHS[row : row + 1], before)[0].double().softmax(-1) for model in models
    ]
    mean = torch.stack(probabilities).mean(0)
    expected = mean[0].gather(1, tokens[:, None])[:, 0].log().float()
    torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=0, atol=1e-5)


# the last: a model that inserts BOS with one that does not
@pytest.mark.parametrize(
    "ensemble", [*([pos] for pos in names(1)), ["relpos", "relpos"], ["cape", "sinpos"]]
)
def test_beam_search_scores_as_full_decoding_of_the_sentence_alone(build, dictionary, ensemble):
    models = [build(pos, seed=seed) for seed, pos in enumerate(ensemble)]
    for row, hypotheses in enumerate(generate(models, dictionary)):
        assert len(hypotheses) == 3
        for hypothesis in hypotheses:
            assert_scores_are_those_of_full_decoding(models, row, hypothesis)


@pytest.mark.parametrize("pos", names(1))
def test_a_generator_called_in_training_gives_the_translations_of_evaluation(
    build, dictionary, pos
):
    """As criteria do that sample: encoder and steps draw nothing, as keys are kept."""
    models = [build(pos)]
    expected = generate(models, dictionary)
    for found, wanted in zip(generate(models, dictionary, train=True), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one["tokens"], other["tokens"])
            assert torch.equal(one["positional_scores"], other["positional_scores"])


def test_a_language_model_samples_in_training_as_in_evaluation(build_lm):
    for pos in names(1):
        model, logits = build_lm(pos), []
        for train in (False, True):
            model.train(train)
            state = {}
            steps = [PREFIX[:, :step] for step in (1, 2)]
            logits.append([model.decoder(one, incremental_state=state)[0] for one in steps])
        for expected, found in zip(*logits, strict=True):
            assert torch.equal(expected, found), pos


@pytest.mark.parametrize("pos", ["cape", "cape_rope", "cape_alibi"])
def test_steps_by_hand_in_training_share_the_shift_and_scale_of_the_source(
    build, seen_positions, pos
):
    """The encoder, called as in training, has drawn them. No step draws an ε."""
    model = build(pos, train=True, max_global_scale=2.0, max_local_shift=0.5)
    encoded = model.encoder(SOURCES, LENGTHS)
    (shift, scale), state = encoded["cape_draw"], {}
    assert len(scale.unique()) == 2
    for step in range(1, 4):
        seen_positions.clear()
        before = torch.full((2, step), 5)
        model.decoder(before, encoder_out=encoded, incremental_state=state)
        expected = (torch.arange(float(step)) + shift) * scale[:, None]
        for found in seen_positions:  # of the query, and of all keys where the variant needs them
            torch.testing.assert_close(found, expected[:, -found.shape[1] :])


@SOME
def test_prefix_tokens_begin_the_translation_and_constraints_are_in_it(build, dictionary, pos):
    models = [build(pos)]
    for row, hypotheses in enumerate(generate(models, dictionary, prefix_tokens=PREFIX)):
        for hypothesis in hypotheses:
            assert hypothesis["tokens"][:2].tolist() == PREFIX[row].tolist()
            assert_scores_are_those_of_full_decoding(models, row, hypothesis)
    search = LexicallyConstrainedBeamSearch(dictionary, "ordered")
    found = generate(models, dictionary, search, constraints=pack_constraints(WANTED))
    best = [hypotheses[0] for hypotheses in found]
    for row, hypothesis in enumerate(best):
        assert_scores_are_those_of_full_decoding(models, row, hypothesis)
    first, second = (hypothesis["tokens"].tolist() for hypothesis in best)
    assert first.index(20) + 1 == first.index(21) < first.index(15)
    assert 30 in second


@SOME
def test_scoring_gives_the_probabilities_of_full_decoding(build, dictionary, pos):
    models = [build(pos, seed=0), build(pos, seed=1)]
    targets = torch.tensor([[5, 6, 7, EOS], [9, 8, EOS, PAD]])
    before = torch.tensor([[EOS, 5, 6, 7], [EOS, 9, 8, PAD]])
    inputs = {**SAMPLE["net_input"], "prev_output_tokens": before}
    sample = {"net_input": inputs, "target": targets}
    for row, hypotheses in enumerate(SequenceScorer(dictionary).generate(models, sample)):
        assert hypotheses[0]["tokens"].tolist() == targets[row, : 4 - row].tolist()
        assert_scores_are_those_of_full_decoding(models, row, hypotheses[0])
