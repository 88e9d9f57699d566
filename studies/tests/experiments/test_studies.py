"""configs/studies: each is whole, its hosts understand it, and a page lists it."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cape_studies import config, hosts, report, run, yamls
from cape_studies.command import parsed
from cape_studies.plan import Plan, Run
from cape_studies.yamls import merge
from cape_support import block_with
from lab_support import rows as rows_of

ROOT = Path(__file__).resolve().parents[3]
PATHS = {path.stem: path for path in yamls.names()}
SINGLE = [name for name, path in PATHS.items() if yamls.studies_of(path) == [path]]
PAGE = ROOT / "docs" / "studies.md"


#: as the preparations of a user's data write them
IMAGES = dict(side=32, patch=4, embed_dim=64, depth=1, num_heads=2, updates=9, classes=3)
IMAGES |= dict(resolutions=[24, 32], majority=40.0)
IMAGES |= dict(found="30 images", twin="vit_small_patch16_dinov3_cape", shift_coords=0.5)
IMAGES |= dict(ref_feat_shape=None)
TEXT = dict(source="de", target="en", updates=9, warmup=2, subsets="1-9,10-12", longest=200)
TEXT |= dict(range=60)
WAVS = dict(rate=8000, token_type="word", n_fft=256, win_length=200, hop_length=80, n_mels=40)
WAVS |= dict(batch_bins=9000, max_epoch=2, num_iters_per_epoch=4, updates=8, max_global_shift=1.5)
WAVS |= dict(frame_shift=0.01)
FACTS = {"my_images": IMAGES, "my_backbone": IMAGES}
FACTS["my_sentences"] = {**TEXT, "found": "40 pairs", "within": "1-9"}
LENGTHS = dict(length=32, lengths=[32, 64, 128], longest=128, scored=16, batch=4)
FACTS["my_text"] = {**LENGTHS, "updates": 9, "warmup": 1, "chance": 5.5, "found": "60 .txt"}
FACTS["my_recordings"] = {**WAVS, "found": "9 files", "within": "1 s", "tests": ["1 s=/test"]}


@functools.cache
def load(name: str) -> config.Study:
    return config.load(PATHS[name])


def runs(name: str) -> list[Run]:
    """One of each variant, tiny, its data not there."""
    plan = Plan(PATHS[name], quick=True)
    plan.facts |= FACTS.get(name, {})
    plan.prepare(lambda one: None)
    return [Run(plan, variant, plan.study.seeds[0]) for variant in plan.study.variants]


@functools.cache
def host_of(path: Path) -> str:
    """The host that a study names, itself or in the first config of its defaults list."""
    content = yamls.read_yaml(path)
    if "host" in content:
        return content["host"]
    return host_of(path.parent / f"{content['defaults'][0].removeprefix('/')}.yaml")


def first(name: str) -> bool:
    """Whether ``make test`` has it: of a user's data, or what others begin with."""
    return name.startswith("my_") or name in ("cifar10", "digits", "multi30k", "stdlib_code")


def of_host(*names: str) -> list[Any]:
    return [
        name if first(name) else pytest.param(name, marks=pytest.mark.release)
        for name in SINGLE
        if host_of(PATHS[name]) in names
    ]


@pytest.mark.parametrize(
    "name",
    [*of_host(*hosts.NAMES), "demo_short"],  # other sets are of the same studies
)
def test_a_dry_run_prints_every_command_and_names_data_that_are_missing_and_nothing_else(
    name, tmp_path, capsys
):
    """So scripts and recipes are there, and what they import is installed."""
    studies = [config.load(path, (), True) for path in yamls.studies_of(PATHS[name])]
    if lacks := [told for one in studies if (told := hosts.missing(one.host))]:
        pytest.skip(lacks[0])  # Python 3.11 has no transformers
    run.main([name, "--quick", "--dry-run", "--out", str(tmp_path)])
    told = capsys.readouterr()
    expected = sum(len(one.run) * len(one.seeds) for one in studies)
    assert f"\n{told.out}".count("\n# train ") == expected
    for one in studies:
        for need, about in one.needs.items():
            assert f"missing: give --data {need}=DIR: {about.what}" in told.out
        for evaluation in one.evaluations:
            assert f"# evaluate {evaluation}\n" in told.out
    assert "is not installed" not in told.out
    assert not list(tmp_path.iterdir())


# --- the hosts understand them; with the sizes of --quick, so that models are built at once


@pytest.mark.parametrize("name", of_host("timm"))
def test_timm_has_the_models_with_their_options(name):
    timm = pytest.importorskip("timm")
    import cape_plugins.timm  # noqa: F401
    from cape_studies.evaluate.timm.options import TimmOptions

    for one in runs(name):
        if one.plan.study.trainer is None:
            pooled = {"global_pool": one.options["gp"]} if "gp" in one.options else {}
            kwargs = pooled | one.options.get("model-kwargs", {})
            timm.create_model(one.options["model"], **kwargs)
        parse(one, TimmOptions)


@pytest.mark.parametrize("name", of_host("fairseq"))
def test_fairseq_has_the_models_with_their_options(name):
    pytest.importorskip("fairseq")
    from fairseq import options
    from omegaconf import OmegaConf

    from cape_plugins.fairseq.architectures import MODELS
    from cape_studies.evaluate.fairseq.options import FairseqOptions

    config = MODELS["cape_transformer"].config
    for one in runs(name):
        if one.asked["recipe"]:
            model = merge(one.asked["recipe"], one.options)["model"]
            # fairseq's own has sizes of the same names, and ignores our options
            assert model.pop("_name") in ("cape_transformer", "transformer")
            OmegaConf.merge(OmegaConf.structured(config), model)
        elif one.plan.study.trainer is None:
            words = one.train_command(one.trained)[1:]
            options.parse_args_and_arch(options.get_training_parser(), words)
        parse(one, FairseqOptions)


@pytest.mark.parametrize("name", of_host("transformers"))
def test_transformers_builds_the_models_with_their_options(name):
    transformers = pytest.importorskip("transformers")
    from cape_plugins.transformers import augment_positions
    from cape_studies.evaluate.transformers.evaluate import TextOptions
    from cape_studies.train_clm import TrainOptions

    for one in runs(name):
        words = one.train_command(one.trained)
        given = parsed("", TrainOptions, words[words.index("cape_studies.train_clm") + 1 :])
        config = transformers.AutoConfig.for_model(given.model_type, **given.config)
        model = transformers.AutoModelForCausalLM.from_config(config)
        if given.augment:
            augment_positions(model, given.augment, **given.augment_options)
        parse(one, TextOptions)


@pytest.mark.parametrize("name", of_host("espnet"))
def test_espnet_builds_the_models_with_their_options(name):
    pytest.importorskip("espnet2")
    pytest.importorskip("jiwer")
    from espnet2.tasks.asr import ASRTask

    import cape_plugins.espnet  # noqa: F401
    from cape_studies.evaluate.espnet.evaluate import EspnetOptions

    for one in runs(name):
        if one.plan.study.trainer is None:
            arguments = ASRTask.get_parser().parse_args(one.train_command(one.trained)[3:])
            arguments.token_list = ["<blank>", "<unk>", "a", "<sos/eos>"]
            ASRTask.build_model(arguments)
        parse(one, EspnetOptions)


def parse(one, kind) -> None:
    """Read the options of a run's evaluations as their commands do."""
    for test in one.tests.values():
        if test.evaluation.script is None:
            _, _, _, _, *words = one.test_command(test, test.scores, test.folder / "items.csv")
            parsed("test", kind, words)


# --- one for each host in full, on stand-ins of the same layout


def made(*words: object) -> list[dict[str, str]]:
    """The scores of what cape-run is asked for, --out last."""
    run.main([*map(str, words)])
    report.main([*map(str, words), "--write", f"{words[-1]}/report"])
    return rows_of(words[-1] / "report" / "scores.csv")


def pairs(folder: Path) -> None:
    """Multi30k's layout in French: counted dogs."""
    import gzip

    lines = {"en": "the dog number {} runs .\n", "fr": "le chien numéro {} court .\n"}
    folder.mkdir()
    for split, count in (("train", 40), ("val", 4), ("test_2016_flickr", 24)):
        for language, line in lines.items():
            with gzip.open(folder / f"{split}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(line.format(number) for number in range(count))


@pytest.mark.release
def test_the_study_of_the_page_runs_as_it_stands_but_for_the_length_of_its_training(tmp_path):
    pytest.importorskip("fairseq")
    pairs(tmp_path / "raw")
    script = ROOT / "integrations" / "fairseq" / "prepare_multi30k.py"
    options = ["--target-lang", "fr", "--merges", "30"]
    command = [sys.executable, str(script), str(tmp_path / "raw"), str(tmp_path / "fr"), *options]
    subprocess.run(command, check=True, capture_output=True)
    rows = made(
        *(of_page(tmp_path), "options.max-update=2"),
        "+options.required-batch-size-multiple=1",  # not of 8
        *("--data", tmp_path / "fr" / "data-bin", "--out", tmp_path / "out"),
    )
    assert {row["variant"] for row in rows} == {"sinpos", "cape"}
    assert all(row["value"] for row in rows)


# --- docs/studies.md: its study


def of_page(folder: Path) -> Path:
    """The study of the page as a file."""
    path = folder / "pairs.yaml"
    path.write_text(block_with(PAGE, "title:", "yaml"), encoding="utf-8")
    return path


def test_the_study_of_the_page_is_whole(tmp_path, capsys):
    run.main([str(of_page(tmp_path)), "--dry-run", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out.count("# train ") == 2
