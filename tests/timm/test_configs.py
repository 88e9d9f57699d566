"""The recipes of configs/timm and the command lines of integrations/timm/README.md."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml

from cape_support import ROOT, commands

CONFIGS = ROOT / "configs" / "timm"
README = ROOT / "integrations" / "timm" / "README.md"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
IMAGENET = [path for path in RECIPES if not path.name.startswith("cifar10")]


def read(path):
    return yaml.safe_load(path.read_text())


def flag(words, name, default=None):
    """The value that follows a flag."""
    return words[words.index(name) + 1] if name in words else default


def launches():
    """(processes, the YAML, the arguments after it) of the README's lines that start train.py."""
    found = []
    for words in commands(README):
        script = next((i for i, word in enumerate(words) if word.endswith("train.py")), None)
        if script is not None and words[script + 1] in ("-c", "--config"):
            launcher, config, arguments = words[:script], words[script + 2], words[script + 3 :]
            processes = int(flag(launcher, "--nnodes", 1)) * int(
                flag(launcher, "--nproc-per-node", 1)
            )
            found.append((processes, CONFIGS / Path(config).name, arguments))
    return found


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


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_key_and_value_is_one_of_train_py(path, train_parser):
    options = {action.dest: action.option_strings for action in train_parser._actions}
    for key, value in read(path).items():
        assert key in options, f"train.py has no argument {key}"  # it would ignore it silently
        arguments = as_arguments(options[key][-1], value)
        assert getattr(train_parser.parse_args(arguments), key) == value


@pytest.mark.parametrize("path", IMAGENET, ids=lambda path: path.stem)
def test_the_learning_rate_grows_linearly_to_the_papers_value(path):
    recipe = read(path)
    assert recipe["lr_base_scale"] == "linear"
    expected = 1e-5 if path.stem.startswith("finetune") else 1e-3
    assert recipe["lr_base"] * 1024 / recipe["lr_base_size"] == pytest.approx(expected)


def test_the_command_line_of_the_readme_trains_on_1024_images_an_update(train_parser):
    ((processes, path, arguments),) = launches()
    parsed = train_parser.parse_args(arguments)
    assert (path.stem, parsed.aug_repeats) == ("deit", 3)
    assert processes * parsed.batch_size * parsed.grad_accum_steps == 1024
    assert parsed.data_dir
    assert parsed.experiment
