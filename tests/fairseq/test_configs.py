"""The recipes of configs/fairseq and the command lines of integrations/fairseq/README.md."""

import re
from importlib import import_module

import pytest
import torch
import yaml
from fairseq.dataclass.initialize import add_defaults, hydra_init
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


def test_the_hydra_command_lines_of_the_readme_compose():
    seen = set()
    for _, arguments in readme_commands("fairseq-hydra-train"):
        seen.add(name := arguments[arguments.index("--config-name") + 1])
        cfg = from_yaml(name, *(word for word in arguments if "=" in word))
        assert cfg["model"]["_name"] == "cape_transformer"
    named = re.findall(r"--config-name (\w+)", TEXT)
    assert seen < {*named} == {path.stem for path in WMT}


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
