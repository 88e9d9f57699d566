"""The source scale: tokens in the target / tokens in the source of the training set."""

import os
import shutil
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from cape_plugins.fairseq.positions import count_source_scale
from cape_plugins.variants import get, names


def expected(pairs):
    """Each sentence counts its words and one EOS."""
    return sum(len(de.split()) + 1 for _, de in pairs) / sum(len(en.split()) + 1 for en, _ in pairs)


def configure(data, *arguments, arch="cape_transformer_tiny"):
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(data), "--arch", arch, *arguments])
    config = convert_namespace_to_omegaconf(args)
    return config, tasks.setup_task(config.task)


def test_it_is_counted_with_one_eos_per_sentence_and_no_bos(data, pairs):
    _, task = configure(data)
    assert count_source_scale(task) == pytest.approx(expected(pairs))
    assert expected(pairs) > 1.05


def test_the_other_direction_counts_the_inverse(data, pairs):
    _, task = configure(data, "-s", "de", "-t", "en")
    assert count_source_scale(task) == pytest.approx(1 / expected(pairs))


def copy_of_shard(data, folder, parts=("train",)):
    folder.mkdir()
    for file in data.iterdir():
        if file.name.startswith("dict."):
            shutil.copy(file, folder)
        for part in parts:
            if file.name.startswith("train."):
                shutil.copy(file, folder / file.name.replace("train.", f"{part}."))
    return folder


def test_all_shards_and_all_parts_count(data, pairs, tmp_path, run):
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"more.{language}").write_text("".join(p[side] + "\n" for p in pairs[3:5]))
    run(
        *("fairseq-preprocess", "-s", "en", "-t", "de", "--trainpref", tmp_path / "more"),
        *("--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.de.txt"),
        *("--destdir", tmp_path / "more-bin"),
    )
    both = f"{data}{os.pathsep}{tmp_path / 'more-bin'}"
    _, task = configure(both)
    assert count_source_scale(task) == pytest.approx(expected(pairs + pairs[3:5]))

    parts = copy_of_shard(data, tmp_path / "parts")
    for file in (tmp_path / "more-bin").glob("train.*"):
        shutil.copy(file, parts / file.name.replace("train.", "train1."))
    _, task = configure(parts)
    assert count_source_scale(task) == pytest.approx(expected(pairs + pairs[3:5]))


@pytest.mark.parametrize("arch", ["cape_transformer_tiny", "cape_transformer"])
def test_building_stores_it_in_the_config(data, pairs, arch):
    config, task = configure(data, "--pos", "cape", "--encoder-layers", "1", arch=arch)
    task.build_model(config.model)
    assert config.model.source_scale == pytest.approx(expected(pairs))


@pytest.mark.parametrize("pos", [p for p in names(1) if "source_scale" not in get(p).options])
def test_variants_that_take_none_need_no_training_set(data, tmp_path, pos):
    empty = copy_of_shard(data, tmp_path / "dictionaries", parts=())
    config, task = configure(
        empty, "--pos", pos, "--source-lang", "en", "--target-lang", "de", "--encoder-layers", "1"
    )
    model = task.build_model(config.model)
    assert (config.model.source_scale, model.encoder.spacing) == (0, 1)


def test_a_given_value_is_kept_and_needs_no_training_set(data, tmp_path):
    empty = copy_of_shard(data, tmp_path / "dictionaries", parts=())
    config, task = configure(
        empty, "--source-scale", "1.0337", "--source-lang", "en", "--target-lang", "de"
    )
    model = task.build_model(config.model)
    assert config.model.source_scale == 1.0337
    assert model.encoder.spacing == 1.0337


def test_a_missing_training_set_is_named(data, tmp_path):
    empty = copy_of_shard(data, tmp_path / "dictionaries", parts=())
    config, task = configure(empty, "--source-lang", "en", "--target-lang", "de")
    with pytest.raises(ValueError, match=r"no training set .*train\.en-de.*--source-scale"):
        task.build_model(config.model)


def test_an_empty_training_set_is_refused(data, tmp_path, run):
    for language in ("en", "de"):
        (tmp_path / f"none.{language}").write_text("")
    run(
        *("fairseq-preprocess", "-s", "en", "-t", "de", "--trainpref", tmp_path / "none"),
        *("--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.de.txt"),
        *("--destdir", tmp_path / "bin"),
    )
    _, task = configure(tmp_path / "bin")
    with pytest.raises(ValueError, match="has 0 source and 0 target tokens"):
        count_source_scale(task)


def test_a_task_without_translation_data_is_asked_for_the_number():
    task = SimpleNamespace(cfg=Namespace(data="somewhere"))
    with pytest.raises(ValueError, match=r"source_lang, target_lang.*--source-scale"):
        count_source_scale(task)


def train(run, data, *flags):
    return run(
        *("fairseq-train", data, "--arch", "cape_transformer_tiny", "--cpu", "--optimizer", "adam"),
        *("--lr", 0.001, "--batch-size", 5, "--num-workers", 0, "--disable-validation"),
        *("--required-batch-size-multiple", 1, *flags),
    ).stdout


def trained_scale(folder):
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    return state["cfg"]["model"]["source_scale"]


def test_fine_tuning_keeps_the_checkpoints_and_says_what_replaces_it(data, pairs, run, tmp_path):
    other = tmp_path / "other"
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs[3:5])
        (tmp_path / f"text.{language}").write_text(text)
    run(
        *("fairseq-preprocess", "-s", "en", "-t", "de"),
        *("--trainpref", tmp_path / "text", "--validpref", tmp_path / "text"),
        *("--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.de.txt"),
        *("--destdir", other),
    )
    assert expected(pairs[3:5]) != pytest.approx(expected(pairs), rel=0.01)
    first, tuned, replaced = (tmp_path / name for name in ("first", "tuned", "replaced"))
    train(run, data, "--save-dir", first, "--max-update", 1)
    checkpoint = first / "checkpoint_last.pt"
    flags = ("--finetune-from-model", checkpoint, "--save-dir", tuned, "--max-update", 1)
    assert "replaces" not in train(run, other, *flags)
    assert trained_scale(tuned) == pytest.approx(expected(pairs))
    output = train(
        *(run, data, "--restore-file", checkpoint, "--save-dir", replaced, "--max-update", 2),
        *("--source-scale", "2.0"),
    )
    assert f"--source-scale 2 replaces {expected(pairs):g}, with which" in output
    assert trained_scale(replaced) == 2
