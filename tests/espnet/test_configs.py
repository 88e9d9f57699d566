"""configs/espnet: ESPnet's own parser accepts every recipe, and builds what it says."""

import itertools
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from espnet2.tasks.abs_task import scheduler_classes
from espnet2.tasks.asr import ASRTask

CONFIGS = Path(__file__).parents[2] / "configs" / "espnet"
CORPORA = ("wsj", "tedlium3")
TABLE = yaml.safe_load((CONFIGS / "variants.yaml").read_text())
RECIPES = [(recipe, name) for recipe, names in TABLE["recipes"].items() for name in names]
SMALLER = ["output_size=32", "attention_heads=2", "linear_units=64", "num_blocks=2"]


def row(recipe: str, variant: str) -> list[str]:
    """A variant's row of the table: options of asr_train."""
    options = TABLE["variants"][variant]
    return shlex.split(options if isinstance(options, str) else options[recipe.split("/")[0]])


def parse(recipe: str, *more: str):
    """What asr_train makes of a recipe of configs/espnet and options."""
    arguments = ["--config", str(CONFIGS / f"{recipe}.yaml"), *more]
    arguments += ["--token_list", "unused", "--output_dir", "unused"]
    parsed = ASRTask.get_parser().parse_args(arguments)
    parsed.token_list = ["<blank>", "<unk>", "<space>", "A", "B", "'", "<sos/eos>"]
    return parsed


def step(recipe: str, *more: str):
    """The model at reduced size, after one update that moved its encoder."""
    smaller = itertools.chain(*(("--encoder_conf", option) for option in SMALLER))
    parsed = parse(recipe, *more, *smaller)
    torch.manual_seed(0)
    model = ASRTask.build_model(parsed).train()
    optimizer = ASRTask.build_optimizers(parsed, model)[0]
    schedule = scheduler_classes[parsed.scheduler](optimizer, **parsed.scheduler_conf)
    rate = 8000 if recipe in ("digits", "tones") else 16000
    lengths = torch.tensor([rate, rate * 9 // 10])
    speech = torch.randn(2, rate)
    text, text_lengths = torch.tensor([[3, 2, 4], [4, 3, -1]]), torch.tensor([3, 2])
    loss, _, _ = model(speech, lengths, text, text_lengths)
    loss.backward()
    before = [parameter.detach().clone() for parameter in model.encoder.parameters()]
    optimizer.step()
    schedule.step()
    assert loss.isfinite()
    assert not all(map(torch.equal, before, model.encoder.parameters()))
    return model


def test_the_table_names_every_recipe_and_has_no_variant_without_one():
    files = {f"{path.parent.name}/{path.stem}" for path in CONFIGS.glob("*/*.yaml")}
    assert set(TABLE["recipes"]) == files
    assert set(TABLE["variants"]) == {variant for _, variant in RECIPES}


@pytest.mark.parametrize(("recipe", "variant"), RECIPES)
def test_asr_train_builds_and_trains_the_variant_of_the_recipe(recipe, variant):
    model = step(recipe, *row(recipe, variant))
    assert model.encoder.pos == variant.replace("_padding_free", "")


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_learning_rate_warms_up_stays_and_is_halved_at_last(corpus):
    parsed = parse(f"{corpus}/train_asr")
    optimizer = torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))], **parsed.optim_conf)
    schedule = scheduler_classes[parsed.scheduler](optimizer, **parsed.scheduler_conf)
    _, warm, half, _, end = parsed.scheduler_conf["warmup_steps_list"]
    rates = []
    for update in (warm // 2, warm, half, half + 2, end, end + 10):
        schedule.last_epoch = update - 1  # get_lr counts from there
        rates.append(schedule.get_lr()[0])
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005, 0.005, 0.005], rel=1e-3)


def test_the_quickstart_is_complete():
    model = step("quickstart").eval()
    assert model.encoder.pos == "cape"
    speech, lengths = torch.randn(2, 16000), torch.tensor([16000, 14000])
    _, stats, _ = model(speech, lengths, torch.tensor([[3, 2], [4, 3]]), torch.tensor([2, 2]))
    for _, criterion, _ in parse("quickstart").best_model_criterion:
        assert stats[criterion] is not None


@pytest.mark.parametrize("recipe", ["digits", "tones"])
def test_the_small_recipes_train_and_the_learning_rate_ends_with_the_training(recipe):
    step(recipe)
    parsed = parse(recipe)
    updates = parsed.max_epoch * parsed.num_iters_per_epoch
    assert parsed.scheduler_conf["total_steps"] == updates
