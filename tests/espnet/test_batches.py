"""``iterator_type: task``: batches made anew in every pass, the same on every rank."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")

import soundfile
from espnet2.tasks.asr import ASRTask
from espnet2.train.distributed_utils import DistributedOption

from cape_plugins.espnet.batches import PerEpochBatches, PerEpochIterFactory, read_durations

RATE = 8000


def durations(count: int = 500, shortest: float = 1.0, longest: float = 20.0) -> dict[str, int]:
    seconds = np.random.default_rng(0).uniform(shortest, longest, count)
    return {f"utt{index}": round(second * RATE) for index, second in enumerate(seconds)}


def check(passes: PerEpochBatches, batches: list[list[str]]) -> list[list[int]]:
    """All utterances once; returns the durations of each batch."""
    assert sorted(itertools.chain(*batches)) == sorted(passes.keys)
    table = dict(zip(passes.keys, passes.durations.tolist(), strict=True))
    return [[table[key] for key in batch] for batch in batches]


# --- one pass


def test_a_pass_holds_every_utterance_once_within_the_budget():
    bins = 100 * RATE
    passes = PerEpochBatches(durations(), bins)
    totals = [sum(batch) for batch in check(passes, passes.batches(0))]
    assert max(totals) <= bins
    assert np.mean(totals) > 0.85 * bins


def test_batches_hold_similar_durations_as_far_as_the_perturbation_goes():
    passes = PerEpochBatches(durations(5000), 100 * RATE)
    ratios = [max(batch) / min(batch) for batch in check(passes, passes.batches(0))]
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


def test_an_utterance_beyond_the_budget_is_a_batch_of_its_own():
    passes = PerEpochBatches({"long": 1000, "a": 40, "b": 50, "c": 45}, 100)
    batches = check(passes, passes.batches(0))
    assert [1000] in batches
    assert all(len(batch) <= 2 for batch in batches)


def test_no_batch_is_more_uneven_than_allowed():
    uneven = {f"{d}": d for d in (100, 220, 230, 500, 510, 1200)}
    passes = PerEpochBatches(uneven, 10_000, max_ratio=2)
    for number in range(20):
        batches = check(passes, passes.batches(number))
        assert sorted(map(sorted, batches)) == [[100], [220, 230], [500, 510], [1200]]


def test_min_batch_size_may_exceed_the_budget_and_drop_last_leaves_the_last_out():
    passes = PerEpochBatches(durations(50), 1, min_batch_size=4)
    assert {len(batch) for batch in passes.batches(0)} == {2, 4}
    passes = PerEpochBatches(durations(50), 1, min_batch_size=4, drop_last=True)
    assert {len(batch) for batch in passes.batches(0)} == {4}


# --- several processes


@pytest.mark.parametrize("count", [8, 9, 61, 500])
@pytest.mark.parametrize("max_ratio", [1.1, 2.0])
def test_every_rank_has_an_even_share_of_every_batch(count, max_ratio):
    ranks = 8
    passes = PerEpochBatches(durations(count), 40 * RATE, ranks=ranks, max_ratio=max_ratio)
    table = durations(count)
    for number in range(10):
        batches = passes.batches(number)
        used = list(itertools.chain(*batches))
        assert len(used) == len(set(used)) > count - ranks
        for batch in batches:
            assert len(batch) >= ranks
            for rank in range(ranks):
                share = [table[key] for key in batch[rank::ranks]]
                assert max(share) <= max_ratio * min(share)


def test_fewer_utterances_than_processes_are_refused():
    with pytest.raises(ValueError, match="3 utterances cannot be shared by 4 processes"):
        PerEpochBatches(durations(3), 100, ranks=4)


# --- epochs


class Numbers(torch.utils.data.Dataset):
    """Names of utterances, as ESPnet's loader asks for them."""

    def __getitem__(self, key: str) -> str:
        return key


def epochs(numbers: range, iterations: int | None, passes: PerEpochBatches) -> list[list[str]]:
    factory = PerEpochIterFactory(
        Numbers(), passes, num_iters_per_epoch=iterations, collate_fn=list
    )
    return [list(factory.build_iter(number)) for number in numbers]


def test_without_iterations_an_epoch_is_a_pass():
    passes = PerEpochBatches(durations(), 100 * RATE)
    assert epochs(range(1, 3), None, passes) == [passes.batches(0), passes.batches(1)]


@pytest.mark.parametrize("iterations", [1, 7, 60, 200])
def test_with_iterations_epochs_go_on_through_the_passes(iterations):
    passes = PerEpochBatches(durations(), 100 * RATE)
    every = [passes.batches(number) for number in range(20)]
    assert len({len(batches) for batches in every}) > 1  # passes differ in length
    stream = list(itertools.chain(*every))
    found = epochs(range(1, 5), iterations, passes)
    assert [len(epoch) for epoch in found] == [iterations] * 4
    assert list(itertools.chain(*found)) == stream[: 4 * iterations]


def test_resuming_at_an_epoch_gives_the_batches_of_that_epoch():
    passes = PerEpochBatches(durations(), 100 * RATE)
    for iterations in (None, 20, 90):
        whole = epochs(range(1, 6), iterations, passes)
        assert epochs(range(5, 6), iterations, passes) == whole[4:]


# --- in ESPnet's task


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Twelve recordings of 1 to 2 s at 8 kHz, as asr_train wants them."""
    folder = tmp_path_factory.mktemp("batches")
    scp, text, shape, words = "", "", "", ""
    for index in range(12):
        samples = RATE + index * RATE // 12
        noise = 0.1 * np.random.default_rng(index).standard_normal(samples)
        soundfile.write(folder / f"{index}.wav", noise, RATE)
        scp += f"utt{index} {folder / f'{index}.wav'}\n"
        text += f"utt{index} a b\n"
        shape += f"utt{index} {samples}\n"
        words += f"utt{index} 2,5\n"
    files = {"wav.scp": scp, "text": text, "speech_shape": shape, "text_shape.word": words}
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "tokens.txt").write_text("<blank>\n<unk>\na\nb\n<sos/eos>\n")
    return folder


def arguments(data: Path, *more: str):
    flags = ["--iterator_type", "task", "--batch_type", "length", "--batch_bins", str(5 * RATE)]
    flags += ["--frontend", "cape_fbank", "--model", "cape_asr", "--output_dir", "unused"]
    flags += ["--frontend_conf", "fs=8k", "--frontend_conf", "n_mels=30"]
    flags += ["--token_type", "word", "--token_list", str(data / "tokens.txt")]
    for name in ("train", "valid"):
        for file, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            flags += [f"--{name}_data_path_and_name_and_type", f"{data / file},{kind}"]
        # text first: the speech is found by name
        for file in ("text_shape.word", "speech_shape"):
            flags += [f"--{name}_shape_file", str(data / file)]
    args = ASRTask.get_parser().parse_args([*flags, "--num_workers", "0", *more])
    args.token_list = ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
    return args


def factory(args, mode: str = "train", distributed: bool = False):
    return ASRTask.build_iter_factory(args, DistributedOption(distributed=distributed), mode)


def names(loader) -> list[list[str]]:
    return [keys for keys, _ in loader]


def test_training_batches_differ_from_epoch_to_epoch(data):
    batches = factory(arguments(data))
    first, second = names(batches.build_iter(1)), names(batches.build_iter(2))
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second))
    assert len(list(itertools.chain(*first))) == 12
    assert {frozenset(b) for b in first} != {frozenset(b) for b in second}
    _, batch = next(iter(batches.build_iter(1)))
    assert batch["speech_lengths"].sum() <= 5 * RATE


def test_validation_and_attention_plots_get_espnets_own_batches(data):
    args = arguments(data, "--valid_batch_type", "unsorted", "--valid_batch_size", "1")
    in_order = [[f"utt{index}"] for index in range(12)]
    assert names(factory(args, "valid").build_iter(1)) == in_order
    assert names(factory(args, "plot_att").build_iter(1)) == in_order[: args.num_att_plot]


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_the_readmes_yaml_validates_on_any_number_of_processes(data, tmp_path, processes):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    readme = Path(__file__).parents[2] / "integrations" / "espnet" / "README.md"
    (written,) = [
        block.split("```")[0]
        for block in readme.read_text(encoding="utf-8").split("```yaml\n")[1:]
        if "iterator_type: task" in block.split("```")[0]
    ]
    (tmp_path / "conf.yaml").write_text(written)
    # the numbers of this data; those given after the file count
    args = arguments(data, "--config", str(tmp_path / "conf.yaml"))
    seen = []
    for rank in range(processes):
        store = FakeStore()
        torch.distributed.init_process_group("fake", store=store, rank=rank, world_size=processes)
        try:
            batches = factory(args, "valid", distributed=processes > 1)
            seen += itertools.chain(*names(batches.build_iter(1)))
        finally:
            torch.distributed.destroy_process_group()
    assert sorted(seen) == sorted(f"utt{index}" for index in range(12))


def test_ranks_share_the_same_batches(data):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = names(factory(arguments(data, "--batch_bins", str(6 * RATE))).build_iter(2))
    shares = []
    for rank in range(2):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            args = arguments(data, "--batch_bins", str(6 * RATE))
            shares.append(names(factory(args, distributed=True).build_iter(2)))
        finally:
            torch.distributed.destroy_process_group()
    assert [b[0::2] for b in whole] == shares[0]
    assert [b[1::2] for b in whole] == shares[1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--batch_type", "folded"], "needs batch_type: length.*got batch_type: folded"),
        (["--frontend_conf", "fs=16k"], "has 8000 Hz, the frontend expects 16000 Hz"),
        (["--batch_bins", "0"], "batch_bins must be ≥ 1, got 0"),
        (["--frontend_conf", "win_length=20000", "--frontend_conf", "n_fft=20000"], "such as utt0"),
    ],
)
def test_what_cannot_work_is_refused_before_training(data, more, says):
    with pytest.raises(ValueError, match=says):
        factory(arguments(data, *more))


def test_a_wrong_sampling_rate_of_validation_data_is_refused_too(data, tmp_path):
    soundfile.write(tmp_path / "fast.wav", np.zeros(16000), 16000)
    (tmp_path / "wav.scp").write_text(f"fast {tmp_path / 'fast.wav'}\n")
    args = arguments(data)
    args.valid_data_path_and_name_and_type = [(str(tmp_path / "wav.scp"), "speech", "sound")]
    with pytest.raises(ValueError, match=r"fast in .* has 16000 Hz, the frontend expects 8000 Hz"):
        factory(args, "valid")


def test_shape_files_that_do_not_fit_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match="--train_shape_file"):
        read_durations([])
    (tmp_path / "text_shape").write_text("utt0 3\n")
    with pytest.raises(ValueError, match=r"name different utterances, such as utt\d"):
        read_durations([str(data / "speech_shape"), str(tmp_path / "text_shape")])
