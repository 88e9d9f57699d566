"""fairseq's generator and scorer on our models: what they find is what full decoding gives."""

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.search import LexicallyConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.token_generation_constraints import pack_constraints

from cape_plugins.variants import names

VARIANTS = names(1)
PAD, EOS = 1, 2
# padded on the left, as fairseq pads a source
SOURCES = torch.tensor([[4, 9, 6, 7, 8, 11, EOS], [PAD, PAD, PAD, 5, 12, 6, EOS]])
LENGTHS = torch.tensor([7, 4])


@pytest.fixture
def generate(dictionary):
    def generate(models, prefix=None, constraints=None):
        options = {}
        if constraints is not None:
            options["search_strategy"] = LexicallyConstrainedBeamSearch(dictionary, "ordered")
        generator = SequenceGenerator(
            models, dictionary, beam_size=3, max_len_a=0, max_len_b=9, min_len=4, **options
        )
        sample = {"net_input": {"src_tokens": SOURCES, "src_lengths": LENGTHS}}
        return generator.generate(
            models,
            sample,
            **({"prefix_tokens": prefix} if prefix is not None else {}),
            **({"constraints": constraints} if constraints is not None else {}),
        )

    return generate


def full_scores(models, row, tokens):
    """Log probabilities of a translation's tokens when the source is alone and all is decoded."""
    source = SOURCES[row : row + 1, -LENGTHS[row] :]
    before = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
    probabilities = [
        model(source, LENGTHS[row : row + 1], before)[0].double().softmax(-1) for model in models
    ]
    mean = torch.stack(probabilities).mean(0)
    return mean[0].gather(1, tokens[:, None])[:, 0].log().float()


def assert_scores_are_those_of_full_decoding(models, found):
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 3
        for hypothesis in hypotheses:
            torch.testing.assert_close(
                hypothesis["positional_scores"],
                full_scores(models, row, hypothesis["tokens"]),
                rtol=0,
                atol=1e-5,
            )


@pytest.mark.parametrize("pos", VARIANTS)
def test_beam_search_scores_as_full_decoding_of_the_sentence_alone(build, generate, pos):
    models = [build(pos)]
    assert_scores_are_those_of_full_decoding(models, generate(models))


@pytest.mark.parametrize("pos", VARIANTS)
def test_an_ensemble_of_two_averages_their_probabilities(build, generate, pos):
    models = [build(pos, seed=0), build(pos, seed=1)]
    assert_scores_are_those_of_full_decoding(models, generate(models))


def test_an_ensemble_may_mix_a_model_that_inserts_bos_with_one_that_does_not(build, generate):
    models = [build("cape"), build("sinpos")]
    assert_scores_are_those_of_full_decoding(models, generate(models))


@pytest.mark.parametrize("pos", VARIANTS)
def test_prefix_tokens_begin_the_translation(build, generate, pos):
    models = [build(pos)]
    prefix = torch.tensor([[10, 11], [12, 13]])
    found = generate(models, prefix=prefix)
    for row, hypotheses in enumerate(found):
        assert all(h["tokens"][:2].tolist() == prefix[row].tolist() for h in hypotheses)
    assert_scores_are_those_of_full_decoding(models, found)


@pytest.mark.parametrize("pos", VARIANTS)
def test_constraints_are_in_the_translation(build, generate, pos):
    models = [build(pos)]
    wanted = [[torch.tensor([20, 21]), torch.tensor([15])], [torch.tensor([30])]]
    found = generate(models, constraints=pack_constraints(wanted))
    best = [hypotheses[0]["tokens"].tolist() for hypotheses in found]
    assert best[0].index(20) + 1 == best[0].index(21) < best[0].index(15)
    assert 30 in best[1]
    for row, hypotheses in enumerate(found):
        torch.testing.assert_close(
            hypotheses[0]["positional_scores"],
            full_scores(models, row, hypotheses[0]["tokens"]),
            rtol=0,
            atol=1e-5,
        )


@pytest.mark.parametrize("pos", VARIANTS)
def test_scoring_gives_the_probabilities_of_full_decoding(build, dictionary, pos):
    models = [build(pos, seed=0), build(pos, seed=1)]
    targets = torch.tensor([[5, 6, 7, EOS], [9, 8, EOS, PAD]])
    before = torch.tensor([[EOS, 5, 6, 7], [EOS, 9, 8, PAD]])
    sample = {
        "net_input": {"src_tokens": SOURCES, "src_lengths": LENGTHS, "prev_output_tokens": before},
        "target": targets,
    }
    found = SequenceScorer(dictionary).generate(models, sample)
    for row, length in enumerate((4, 3)):
        torch.testing.assert_close(
            found[row][0]["positional_scores"],
            full_scores(models, row, targets[row, :length]),
            rtol=0,
            atol=1e-5,
        )
