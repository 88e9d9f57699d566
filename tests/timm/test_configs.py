"""The recipes of configs/timm and the command lines of integrations/timm/README.md."""

import itertools
import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import timm
import yaml

from cape_support import ROOT, commands

CONFIGS = ROOT / "configs" / "timm"
README = ROOT / "integrations" / "timm" / "README.md"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
IMAGENET = [path for path in RECIPES if not path.name.startswith("cifar10")]
FROM_SCRATCH = [path for path in IMAGENET if not path.name.startswith("finetune")]


def read(path):
    return yaml.safe_load(path.read_text())


def recipe_name(path):
    return path.stem


def readme_commands():
    """The README's command lines that start train.py, as lists of words."""
    found = [" ".join(words) for words in commands(README)]
    return [line.split() for line in found if re.search(r"train\.py (-c|--config)", line)]


def flag(words, *names, default=None):
    """The value that follows the last of these flags."""
    found = [words[i + 1] for i, word in enumerate(words[:-1]) if word in names]
    return found[-1] if found else default


def split_command(words):
    """(processes, the YAML, train.py's arguments) of a command line."""
    script = next(i for i, word in enumerate(words) if word.endswith("train.py"))
    launcher, arguments = words[:script], words[script + 1 :]
    processes = int(flag(launcher, "--nnodes", default=1)) * int(
        flag(launcher, "--nproc-per-node", default=1)
    )
    return processes, CONFIGS / Path(flag(arguments, "-c", "--config")).name, arguments


def effective_batch(processes, recipe, arguments):
    batch = int(flag(arguments, "-b", "--batch-size", default=recipe["batch_size"]))
    return processes * batch * int(flag(arguments, "--grad-accum-steps", default=1))


@pytest.fixture(scope="module")
def train_parser():
    """The parser of timm's train.py."""
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS does not name a folder with timm's train.py")
    spec = spec_from_file_location("timm_train_script", Path(scripts) / "train.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.parser


def as_arguments(option, value):
    """A YAML value as train.py's command line has it."""
    if value is True:
        return [option]
    if isinstance(value, dict):
        return [option, *(f"{key}={item}" for key, item in value.items())]
    return [option, *map(str, value if isinstance(value, list) else [value])]


@pytest.mark.parametrize("path", RECIPES, ids=recipe_name)
def test_every_key_and_value_is_one_of_train_py(path, train_parser):
    options = {action.dest: action.option_strings for action in train_parser._actions}
    for key, value in read(path).items():
        assert key in options, f"train.py has no argument {key}"  # it would ignore it silently
        arguments = as_arguments(options[key][-1], value)
        assert getattr(train_parser.parse_args(arguments), key) == value


def test_the_command_lines_of_the_readme_parse(train_parser):
    for words in readme_commands():
        _, path, arguments = split_command(words)
        at = next(i for i, word in enumerate(arguments) if word in ("-c", "--config"))
        parsed = train_parser.parse_args(arguments[:at] + arguments[at + 2 :])
        assert path.is_file()
        assert parsed.data_dir
        assert parsed.experiment


def test_the_command_lines_of_the_readme_cover_every_kind_of_machine():
    found = {split_command(words)[0] for words in readme_commands()}
    assert found == {1, 8, 16}


def test_every_command_line_of_the_readme_trains_on_1024_images_an_update():
    for words in readme_commands():
        processes, path, arguments = split_command(words)
        assert effective_batch(processes, read(path), arguments) == 1024, " ".join(words)


def test_repeated_augmentation_is_asked_for_where_several_processes_train():
    for words in readme_commands():
        processes, path, arguments = split_command(words)
        assert (flag(arguments, "--aug-repeats") == "3") == (processes > 1), " ".join(words)
        assert "aug_repeats" not in read(path)


def test_models_of_the_readme_exist():
    names = re.findall(r"\b((?:vit|deit)_\w*patch\w+)\b(?!\*)", README.read_text())
    patterns = re.findall(r"`((?:vit|deit)_\{[^`]+|vit_\w+\*\w+)`", README.read_text())
    for pattern in patterns:
        parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
        for name in itertools.product(*parts):
            assert timm.list_models("".join(name)), pattern
    assert names
    assert not [name for name in names if not timm.is_model(name)]


@pytest.mark.parametrize("path", IMAGENET, ids=recipe_name)
def test_the_learning_rate_grows_linearly_to_the_papers_value(path):
    recipe = read(path)
    assert recipe["lr_base_scale"] == "linear"
    expected = 1e-5 if path.stem.startswith("finetune") else 1e-3
    assert recipe["lr_base"] * 1024 / recipe["lr_base_size"] == pytest.approx(expected)


@pytest.mark.parametrize("path", IMAGENET, ids=recipe_name)
def test_every_variant_gets_images_of_a_size_that_its_patches_divide(path):
    recipe = read(path)
    for size in [recipe["img_size"], *recipe.get("train_img_sizes", [])]:
        assert size % 16 == 0
    assert recipe["model_kwargs"] == {"img_size": recipe["img_size"], "dynamic_img_size": True}
    for name in ("vit_tiny_patch16_cape_224", "deit_tiny_patch16_224"):
        model = timm.create_model(name, **recipe["model_kwargs"])
        assert model.patch_embed.img_size == (recipe["img_size"], recipe["img_size"])
        assert not model.patch_embed.strict_img_size


def test_recipes_from_scratch_differ_in_image_sizes_alone():
    def rest(path):
        sizes = ("img_size", "train_img_sizes", "model_kwargs")
        return {key: value for key, value in read(path).items() if key not in sizes}

    first, *others = FROM_SCRATCH
    assert len(others) == 1
    assert all(rest(path) == rest(first) for path in others)
