"""``iterator_type: task``: batches made anew in every pass, the same on every rank."""

import collections
import itertools

import numpy as np
import pytest
import torch
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.tasks.asr import ASRTask
from espnet2.train.distributed_utils import DistributedOption

from cape_plugins.espnet.paper.batches import PerEpochBatches, read_durations
from espnet_support import RATE, process


def durations(count: int = 500, shortest: float = 1.0, longest: float = 20.0) -> dict[str, int]:
    seconds = np.random.default_rng(0).uniform(shortest, longest, count)
    return {f"utt{index}": round(second * RATE) for index, second in enumerate(seconds)}


def check(passes: PerEpochBatches, batches: list[list[str]]) -> list[list[int]]:
    """All utterances once; returns the durations of each batch."""
    assert sorted(itertools.chain(*batches)) == sorted(passes.durations)
    return [[passes.durations[key] for key in batch] for batch in batches]


# --- one pass


def test_a_pass_holds_every_utterance_once_in_full_batches_of_similar_durations():
    bins = 100 * RATE
    passes = PerEpochBatches(durations(5000), bins)
    batches = check(passes, passes.batches(0))
    totals = [sum(batch) for batch in batches]
    assert max(totals) <= bins
    assert np.mean(totals) > 0.85 * bins
    ratios = [max(batch) / min(batch) for batch in batches]
    assert np.median(ratios) > 1.2
    # the perturbation, and the spread of perturbed durations in a batch of the shortest
    assert max(ratios) < 1.15 / 0.85 * 1.2


def test_each_pass_groups_and_orders_anew_and_the_same_seed_repeats_it():
    passes = PerEpochBatches(durations(), 100 * RATE, seed=3)
    first, second = passes.batches(0), passes.batches(1)
    assert {frozenset(b) for b in first}.isdisjoint(frozenset(b) for b in second)
    assert PerEpochBatches(durations(), 100 * RATE, seed=3).batches(1) == second
    assert PerEpochBatches(durations(), 100 * RATE, seed=4).batches(1) != second
    means = [np.mean(batch) for batch in check(passes, first)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5  # not sorted


def test_what_may_exceed_the_budget_and_what_is_left_out():
    passes = PerEpochBatches({"long": 1000, "a": 40, "b": 50, "c": 45}, 100)
    batches = check(passes, passes.batches(0))
    assert [1000] in batches  # an utterance beyond it is a batch of its own
    assert all(len(batch) <= 2 for batch in batches)
    passes = PerEpochBatches(durations(50), 1, ranks=4)
    assert [len(batch) for batch in passes.batches(0)] == [4] * 12


def test_no_batch_is_more_uneven_than_allowed():
    uneven = {f"{d}": d for d in (100, 220, 230, 500, 510, 1200)}
    passes = PerEpochBatches(uneven, 10_000, max_ratio=2)
    for number in range(20):
        batches = check(passes, passes.batches(number))
        assert sorted(map(sorted, batches)) == [[100], [220, 230], [500, 510], [1200]]
    assert len(PerEpochBatches({"a": 100, "b": 200}, 300, max_ratio=2).batches(0)) == 1


@pytest.mark.parametrize(("count", "max_ratio"), [(8, 2.0), (61, 1.1), (500, 2.0)])
def test_every_rank_has_an_even_share_of_every_batch(count, max_ratio):
    ranks = 8
    passes = PerEpochBatches(durations(count), 40 * RATE, ranks=ranks, max_ratio=max_ratio)
    for number in range(10):
        batches = passes.batches(number)
        used = list(itertools.chain(*batches))
        assert len(used) == len(set(used)) > count - ranks
        for batch in batches:
            assert len(batch) >= ranks
            for rank in range(ranks):
                share = [passes.durations[key] for key in batch[rank::ranks]]
                assert max(share) <= max_ratio * min(share)


# --- epochs


class Numbers(torch.utils.data.Dataset):
    """Names of utterances, as ESPnet's loader asks for them."""

    def __getitem__(self, key: str) -> str:
        return key


def epochs(numbers: range, iterations: int | None, passes: PerEpochBatches) -> list[list[str]]:
    factory = SequenceIterFactory(
        Numbers(), passes, num_iters_per_epoch=iterations, collate_fn=list
    )
    return [list(factory.build_iter(number)) for number in numbers]


@pytest.mark.parametrize("iterations", [7, 60])
def test_with_iterations_epochs_go_on_through_the_passes(iterations):
    passes = PerEpochBatches(durations(), 100 * RATE)
    sizes = {len(passes.batches(number)) for number in range(20)}
    assert len(sizes) > 1  # passes differ in length, by which ESPnet skips or repeats at the seams
    found = epochs(range(1, 1 + 5 * len(passes) // iterations), iterations, passes)
    assert {len(epoch) for epoch in found} == {iterations}
    seen = collections.Counter(itertools.chain(*itertools.chain(*found)))
    expected = len(found) * iterations / len(passes)
    assert max(abs(seen[key] - expected) for key in passes.durations) < 2
    assert sum(seen.values()) / len(passes.durations) == pytest.approx(expected, rel=0.05)


def test_resuming_at_an_epoch_gives_the_batches_of_that_epoch_which_may_be_a_pass():
    passes = PerEpochBatches(durations(), 100 * RATE)
    assert epochs(range(1, 3), None, passes) == [passes.batches(1), passes.batches(2)]
    for iterations in (None, 20, 90):
        whole = epochs(range(1, 6), iterations, passes)
        assert epochs(range(5, 6), iterations, passes) == whole[4:]


# --- in ESPnet's task


@pytest.fixture
def factory(data, parse, tmp_path):
    """mode, settings → ESPnet's factory of the corpus' batches, on one of several ranks or not."""
    shapes = tmp_path / "text_shape.word"  # come first: the speech is found by name
    shapes.write_text("".join(f"train{index} 4,5\n" for index in range(12)))

    def factory(mode: str = "train", ranks: int = 1, **settings: object):
        task = {"iterator_type": "task", "batch_type": "length", "batch_bins": 5 * RATE}
        args = parse("--train_shape_file", str(shapes), *data(), **{**task, **settings})
        return ASRTask.build_iter_factory(args, DistributedOption(distributed=ranks > 1), mode)

    return factory


def names(loader) -> list[list[str]]:
    return [keys for keys, _ in loader]


VALID = [[f"valid{index}"] for index in range(4)]


def test_training_batches_differ_from_epoch_to_epoch(factory):
    batches = factory()
    first, second = names(batches.build_iter(1)), names(batches.build_iter(2))
    for epoch in (first, second):
        assert sorted(itertools.chain(*epoch)) == sorted(f"train{index}" for index in range(12))
    assert {frozenset(b) for b in first} != {frozenset(b) for b in second}
    _, batch = next(iter(batches.build_iter(1)))
    assert batch["speech_lengths"].sum() <= 5 * RATE
    both = (factory(frontend=name, frontend_conf={}) for name in ("cape_fbank", "default"))
    assert [each.sampler.max_ratio for each in both] == [2.0, float("inf")]


def test_validation_and_attention_plots_get_espnets_own_batches(factory):
    one = {"valid_batch_type": "unsorted", "valid_batch_size": 1}
    assert names(factory("valid", **one).build_iter(1)) == VALID
    plots = factory("plot_att", num_att_plot=3, **one)
    assert names(plots.build_iter(1)) == VALID[:3]


def test_ranks_share_the_same_batches(factory):
    bins = {"batch_bins": 6 * RATE}
    whole = names(factory(**bins).build_iter(2))
    for rank in range(2):
        with process(rank, 2):
            share = names(factory(ranks=2, **bins).build_iter(2))
        assert share == [batch[rank::2] for batch in whole]


def test_what_cannot_work_is_refused_before_training(factory, corpus, tmp_path):
    with pytest.raises(ValueError, match="batch_type: folded"):
        factory(batch_type="folded")
    with pytest.raises(ValueError, match="batch_bins"):
        factory(batch_bins=0)
    with pytest.raises(ValueError, match="4 processes"):
        PerEpochBatches(durations(3), 100, ranks=4)
    with pytest.raises(ValueError, match="--train_shape_file"):
        read_durations([])
    for name, length in (("text_shape", 3), ("other", 5)):
        (tmp_path / name).write_text(f"train0 {length}\n")
    # no speech: the first
    assert read_durations([f"{tmp_path}/text_shape", f"{tmp_path}/other"]) == {"train0": 3}
    with pytest.raises(ValueError, match="text_shape"):
        read_durations([str(corpus / "train" / "speech_shape"), str(tmp_path / "text_shape")])
