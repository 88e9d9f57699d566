"""The source scale: tokens in the target / tokens in the source of the training set."""

import os
import shutil
from argparse import Namespace
from types import SimpleNamespace

import pytest
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from cape_plugins.fairseq.source_scale import count_source_scale
from fairseq_support import PAIRS, TRAIN, call, configure, preprocess, ratio, train

LANGUAGES = "-s en -t de"


@pytest.fixture(scope="module")
def shard(data, tmp_path_factory):
    """Two of the sentences, of another ratio, with the dictionaries of all."""
    return preprocess(tmp_path_factory.mktemp("shard"), PAIRS[3:5], dictionaries_of(data))


def task_of(folder, **options):
    """fairseq's, without a command line, whose parser takes a second."""
    own = dict(dataset_impl="mmap", required_seq_len_multiple=1, train_subset="train")
    return TranslationTask.setup_task(TranslationConfig(data=str(folder), **own, **options))


def dictionaries_of(folder):
    return f"--srcdict {folder}/dict.en.txt --tgtdict {folder}/dict.de.txt"


def test_it_counts_both_directions_all_shards_and_all_parts(data, shard, dictionaries):
    def count(folder, source="en", target="de", **options):
        return count_source_scale(
            task_of(folder, source_lang=source, target_lang=target, **options)
        )

    assert count(data) == pytest.approx(ratio(PAIRS))
    assert 1.05 < count(data) != pytest.approx(ratio(PAIRS[3:5]))
    assert count(data, "de", "en") == pytest.approx(1 / count(data))
    assert count(f"{data}{os.pathsep}{shard}") == pytest.approx(ratio(PAIRS + PAIRS[3:5]))
    for folder, part in ((data, "train."), (shard, "train1.")):
        for file in folder.glob("train.*"):
            shutil.copy(file, dictionaries / file.name.replace("train.", part))
    # by default fairseq reads no parts
    assert count(dictionaries, upsample_primary=1) == pytest.approx(ratio(PAIRS + PAIRS[3:5]))


@pytest.mark.parametrize("arch", ["cape_transformer_tiny", "cape_transformer"])
def test_building_stores_it_in_the_config(data, arch):
    sizes = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16"
    config, task = configure(data, sizes, arch=arch)
    model = task.build_model(config.model)
    assert config.model.source_scale == model.encoder.spacing == pytest.approx(ratio(PAIRS))
    assert task.datasets == {}  # the trainer loads it itself


@pytest.mark.parametrize("pos", ["sinpos", "cape_rope"])
def test_variants_that_take_none_need_no_training_set(dictionaries, pos):
    config, task = configure(dictionaries, f"--pos {pos} {LANGUAGES}")
    model = task.build_model(config.model)
    assert (config.model.source_scale, model.encoder.spacing) == (0, 1)


def test_a_given_value_is_kept_and_needs_no_training_set(dictionaries):
    config, task = configure(dictionaries, f"--source-scale 1.0337 {LANGUAGES}")
    assert task.build_model(config.model).encoder.spacing == config.model.source_scale == 1.0337


def test_what_cannot_be_counted_is_asked_for(dictionaries, tmp_path_factory):
    config, task = configure(dictionaries, LANGUAGES)
    with pytest.raises(ValueError, match="--source-scale"):
        task.build_model(config.model)
    empty = preprocess(tmp_path_factory.mktemp("empty"), [], dictionaries_of(dictionaries))
    with pytest.raises(ValueError, match="--source-scale"):
        count_source_scale(task_of(empty))
    task = SimpleNamespace(cfg=Namespace(data="somewhere"))
    with pytest.raises(ValueError, match="--source-scale"):
        count_source_scale(task)


@pytest.mark.release
def test_fine_tuning_keeps_the_checkpoints_and_another_one_is_refused(data, shard, tmp_path):
    first = train(data, tmp_path / "first", "--max-update 1")[0]["cfg"]["model"]["source_scale"]
    checkpoint = tmp_path / "first" / "checkpoint_last.pt"
    tuning = f"--finetune-from-model {checkpoint} --max-update 1"
    tuned, output = train(shard, tmp_path / "tuned", tuning)
    assert first == tuned["cfg"]["model"]["source_scale"] == pytest.approx(ratio(PAIRS))
    assert "--source-scale" not in output
    line = f"fairseq-train {data} {TRAIN} --restore-file {checkpoint} --source-scale 2.0"
    status, output = call(f"{line} --max-update 2 --save-dir {tmp_path}/new".replace("\n", " "))
    assert status == 2
    assert f"--source-scale {first:g}" in output.splitlines()[-1]
