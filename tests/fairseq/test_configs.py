"""The recipes of configs/fairseq and the command lines of integrations/fairseq/README.md."""

import re
import shlex
from importlib import import_module

import pytest
import torch
import yaml

pytest.importorskip("fairseq")

from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from cape_support import ROOT, commands
from fairseq_support import PAIRS, ratio, run

CONFIGS = ROOT / "configs" / "fairseq"
README = ROOT / "integrations" / "fairseq" / "README.md"
TEXT = README.read_text("utf-8")
WMT = sorted(CONFIGS.glob("wmt14*.yaml"))
RECIPES = [*WMT, CONFIGS / "multi30k.yaml"]
# architecture of a command line → the YAML that it is to equal
RECIPE_OF = {
    "cape_transformer_wmt_en_de": "wmt14_en_de_6l",
    "cape_transformer_wmt_en_de_18l": "wmt14_en_de_18l",
    "cape_transformer_wmt_en_fr": "wmt14_en_fr_6l",
}


def read(path):
    return yaml.safe_load(path.read_text())


def readme_commands(program):
    """Of the README's command lines that start this program: (words before it, its arguments)."""
    lines = commands(TEXT.replace(f"$(which {program})", program))
    return [(w[: w.index(program)], w[w.index(program) + 1 :]) for w in lines if program in w]


def resolved(cfg):
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


def from_yaml(name, *overrides):
    """What fairseq-hydra-train makes of a recipe."""
    hydra = import_module("hydra")
    if not hasattr(hydra, "compose"):  # hydra 1.0
        hydra = import_module("hydra.experimental")
    hydra_init(name)
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(config_dir=str(CONFIGS)):
        cfg = hydra.compose(config_name=name, overrides=["task.data=data-bin", *overrides])
    del ConfigStore.instance().repo[f"{name}.yaml"]  # it is a schema for all of this name
    add_defaults(cfg)
    return resolved(cfg)


def from_command_line(words):
    """What fairseq-train makes of its arguments."""
    parser = options.get_training_parser()
    return resolved(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words)))


# folders, logs, the machine
LEFT_OUT = "data save_dir log_interval log_format distributed_world_size update_freq max_tokens"
LEFT_OUT = {*LEFT_OUT.split(), "max_tokens_valid"}


def compared(cfg):
    """What decides about the training."""
    cfg["model"].pop("_name")
    return {
        name: {option: values[option] for option in values.keys() - LEFT_OUT}
        for name, values in cfg.items()
        if isinstance(values, dict) and name != "scoring"  # fairseq-train scores nothing
    }


#: WMT's French as a command line of fairseq-train, on 8 GPUs
FRENCH = """
    wmt14_en_fr/data-bin --source-lang en --target-lang fr
    --arch cape_transformer_wmt_en_fr --pos cape --admin-init --share-all-embeddings
    --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
    --optimizer radam --adam-betas '(0.9, 0.98)' --weight-decay 0.0 --clip-norm 0.0
    --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-updates 8000 --warmup-init-lr 1e-07
    --stop-min-lr 1e-09 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --fp16 --fp16-scale-window 256 --threshold-loss-scale 0.03125 --seed 1111 --max-epoch 75
    --max-tokens 8000 --update-freq 10
"""
#: what the German trainings have in place of the French one's values
GERMAN = {"--target-lang": "de", "--lr": "0.001", "--max-epoch": "150"}


@pytest.mark.parametrize(("arch", "recipe"), RECIPE_OF.items())
def test_yaml_and_command_line_give_the_same_settings(arch, recipe):
    arguments = shlex.split(FRENCH)
    for name, value in {"--arch": arch, **(GERMAN if "_en_de" in arch else {})}.items():
        arguments[arguments.index(name) + 1] = value
    assert compared(from_command_line(arguments)) == compared(from_yaml(recipe))


def test_the_hydra_command_lines_of_the_readme_compose():
    seen = set()
    for _, arguments in readme_commands("fairseq-hydra-train"):
        seen.add(name := arguments[arguments.index("--config-name") + 1])
        cfg = from_yaml(name, *(word for word in arguments if "=" in word))
        assert cfg["model"]["_name"] == "cape_transformer"
    named = re.findall(r"--config-name (\w+)", TEXT)
    assert seen < {*named} == {path.stem for path in WMT} == set(RECIPE_OF.values())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_value_of_a_recipe_arrives(path):
    recipe = read(path)
    recipe["task"]["data"] = "data-bin"
    cfg = from_yaml(path.stem)
    for section, values in recipe.items():
        assert {name: cfg[section][name] for name in values} == values


@pytest.mark.release
def test_fairseq_hydra_train_trains_a_recipe_on_a_small_corpus(data, tmp_path):
    # its dictionaries are not joined
    tiny = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}
    sizes = [f"model.{side}_{k}={n}" for side in ("encoder", "decoder") for k, n in tiny.items()]
    output = run(
        f"fairseq-hydra-train --config-dir {CONFIGS} --config-name wmt14_en_de_18l "
        f"task.data={data} model.pos=cape model.max_global_shift=10 {' '.join(sizes)} "
        "model.share_all_embeddings=false common.cpu=true common.fp16=false "
        f"checkpoint.save_dir={tmp_path} hydra.run.dir={tmp_path} "
        "dataset.num_workers=0 dataset.max_tokens=40 optimization.max_update=2"
    )
    assert "num_updates 2" in output
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    model = state["cfg"]["model"]
    assert (model["pos"], model["max_global_shift"]) == ("cape", 10)
    assert model["source_scale"] == pytest.approx(ratio(PAIRS))
    assert len(model["admin_scales"].split(",")) == 2 * 2 + 3 * 2  # residuals of ADMIN
    assert state["optimizer_history"][-1]["optimizer_name"] == "FairseqRAdam"
