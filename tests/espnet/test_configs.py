"""configs/espnet: ESPnet's own parser accepts every recipe, and builds what it says."""

import importlib
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("espnet2")
yaml = pytest.importorskip("yaml")

CONFIGS = Path(__file__).parents[2] / "configs" / "espnet"
CORPORA = ("wsj", "tedlium3")
TABLE = yaml.safe_load((CONFIGS / "variants.yaml").read_text())
VARIANTS = (
    *("nopos", "sinpos", "abspos", "relpos", "relpos_first", "cape"),
    *("sinpos_padding_free", "cape_padding_free"),
)
RECIPES = [(recipe, name) for recipe, names in TABLE["recipes"].items() for name in names]
ABLATIONS = [
    pytest.param(variant, ablation, id=f"{variant}-{ablation['name'].replace(' ', '_')}")
    for ablation in TABLE["ablations"]
    for variant in ablation["variants"]
]
SMALLER = ["output_size=32", "attention_heads=2", "linear_units=64", "num_blocks=2"]
# what may differ between the variants of a corpus: positions, and what training without padding is
POSITIONS = {
    *("pos", "abspos_context", "relpos_context"),
    *("max_global_shift", "max_local_shift", "max_global_scale"),
}
PADDING_FREE = {"frontend": "cape_fbank", "iterator_type": "task"}
HOPS = {"hop_unit", "hop_rounding"}


@pytest.fixture(scope="module")
def task():
    return importlib.import_module("espnet2.tasks.asr").ASRTask


def row(recipe: str, variant: str) -> list[str]:
    """A variant's row of the table: options of asr_train."""
    options = TABLE["variants"][variant]
    return shlex.split(options if isinstance(options, str) else options[recipe.split("/")[0]])


def parse(task, recipe: str, *more: str):
    """What asr_train makes of a recipe of configs/espnet and options."""
    arguments = ["--config", str(CONFIGS / f"{recipe}.yaml"), *more]
    arguments += ["--token_list", "unused", "--output_dir", "unused"]
    parsed = task.get_parser().parse_args(arguments)
    parsed.token_list = ["<blank>", "<unk>", "<space>", "A", "B", "'", "<sos/eos>"]
    return parsed


def settings(task, recipe: str, variant: str) -> dict:
    return vars(parse(task, recipe, *row(recipe, variant)))


def build(task, recipe: str, *more: str):
    for option in SMALLER:
        more = (*more, "--encoder_conf", option)
    return task.build_model(parse(task, recipe, *more))


def step(task, recipe: str, *more: str):
    """The model at reduced size, after one update that moved its encoder."""
    parsed = parse(task, recipe, *more)
    assert parsed.use_tensorboard is False  # not installed with ESPnet
    torch.manual_seed(0)
    model = build(task, recipe, *more).train()
    optimizer = task.build_optimizers(parsed, model)[0]
    from espnet2.tasks.abs_task import scheduler_classes

    schedule = scheduler_classes[parsed.scheduler](optimizer, **parsed.scheduler_conf)
    rate = 8000 if recipe == "digits" else 16000
    lengths = torch.tensor([rate, rate * 9 // 10])
    speech = torch.randn(2, rate)
    text, text_lengths = torch.tensor([[3, 2, 4], [4, 3, -1]]), torch.tensor([3, 2])
    loss, _, _ = model(speech, lengths, text, text_lengths)
    loss.backward()
    before = [parameter.detach().clone() for parameter in model.encoder.parameters()]
    optimizer.step()
    schedule.step()
    assert loss.isfinite()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.encoder.parameters(), strict=True)]
    assert any(moved)
    return model


def test_the_table_names_every_recipe_and_both_corpora_have_every_variant():
    files = {f"{path.parent.name}/{path.stem}" for path in CONFIGS.glob("*/*.yaml")}
    assert set(TABLE["recipes"]) == files
    for corpus in CORPORA:
        assert set(TABLE["recipes"][f"{corpus}/train_asr"]) == set(VARIANTS)
    assert set(TABLE["variants"]) == {variant for _, variant in RECIPES}


@pytest.mark.parametrize(("recipe", "variant"), RECIPES)
def test_asr_train_builds_and_trains_the_variant_of_the_recipe(task, recipe, variant):
    model = step(task, recipe, *row(recipe, variant))
    assert model.encoder.pos == variant.replace("_padding_free", "")


@pytest.mark.parametrize("corpus", CORPORA)
def test_variants_differ_in_positions_and_in_padding_alone(task, corpus):
    recipe = f"{corpus}/train_asr"

    def shared(variant: str) -> dict:
        found = settings(task, recipe, variant)
        if variant.endswith("padding_free"):
            for name, value in PADDING_FREE.items():
                assert found.pop(name) == value
            for name in HOPS:
                del found["frontend_conf"][name]
        else:
            assert (found.pop("frontend"), found.pop("iterator_type")) == ("default", "sequence")
        for name in POSITIONS:
            found["encoder_conf"].pop(name, None)
        return found

    for variant in VARIANTS:
        pos = settings(task, recipe, variant)["encoder_conf"]["pos"]
        assert pos == variant.replace("_padding_free", "")
        assert shared(variant) == shared("nopos"), variant


@pytest.mark.parametrize(
    ("corpus", "dropout", "scale"), [("wsj", 0.4, 1.1), ("tedlium3", 0.1, 2.0)]
)
def test_the_recipes_are_of_the_papers_size_and_regularisation(task, corpus, dropout, scale):
    recipe = settings(task, f"{corpus}/train_asr", "cape")
    encoder = recipe["encoder_conf"]
    sizes = [encoder[n] for n in ("num_blocks", "output_size", "attention_heads", "linear_units")]
    assert sizes == [36, 768, 4, 3072]
    for name in ("dropout_rate", "attention_dropout_rate", "layer_drop_rate"):
        assert encoder[name] == dropout
    assert encoder["max_global_scale"] == scale
    padding_free = settings(task, f"{corpus}/train_asr", "cape_padding_free")
    assert padding_free["encoder_conf"]["max_global_scale"] == 1.0
    assert recipe["batch_bins"] == 240 * 16000
    assert recipe["optim"] == "adagrad"


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_learning_rate_warms_up_stays_and_is_halved_at_last(task, corpus):
    parsed = parse(task, f"{corpus}/train_asr")
    from espnet2.tasks.abs_task import scheduler_classes

    optimizer = torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))], **parsed.optim_conf)
    schedule = scheduler_classes[parsed.scheduler](optimizer, **parsed.scheduler_conf)
    _, warm, half, _, end = parsed.scheduler_conf["warmup_steps_list"]
    rates = []
    for update in (warm // 2, warm, half, half + 2, end, end + 10):
        schedule.last_epoch = update - 1  # get_lr counts from there
        rates.append(schedule.get_lr()[0])
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005, 0.005, 0.005], rel=1e-3)


@pytest.mark.parametrize("recipe", [f"{corpus}/train_asr" for corpus in CORPORA])
@pytest.mark.parametrize(("variant", "ablation"), ABLATIONS)
def test_an_ablation_changes_what_it_names(task, recipe, variant, ablation):
    options = shlex.split(ablation["options"])
    before = settings(task, recipe, variant)
    after = vars(parse(task, recipe, *row(recipe, variant), *options))
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"encoder_conf", "specaug"}
    assert ("specaug" in changed) is ("--specaug" in options)
    assert after["specaug"] == (None if "--specaug" in options else "cape_specaug")
    for flag, setting in zip(options[::2], options[1::2], strict=True):
        if flag == "--encoder_conf":
            name, value = setting.split("=")
            assert name in before["encoder_conf"]  # else it would be a new, mistyped one
            assert after["encoder_conf"][name] == float(value)
    step(task, recipe, *row(recipe, variant), *options)


def ablated(task, recipe: str, variant: str, *names: str) -> dict:
    """The settings of an entry of a set: a variant, and one of its ablations or none."""
    options = []
    for name in names:
        (ablation,) = [one for one in TABLE["ablations"] if one["name"] == name]
        assert variant in ablation["variants"]
        options += shlex.split(ablation["options"])
    return vars(parse(task, recipe, *row(recipe, variant), *options))


@pytest.mark.parametrize("recipe", [f"{corpus}/train_asr" for corpus in CORPORA])
def test_the_sets_are_the_papers_figures(task, recipe):
    sets = {
        name: [ablated(task, recipe, *entry) for entry in entries]
        for name, entries in TABLE["sets"].items()
    }

    def values(name: str, *options: str) -> list[tuple]:
        return [tuple(one["encoder_conf"][key] for key in options) for one in sets[name]]

    # neither, SpecAugment alone, the shifts alone, both
    augmented = [
        (one["specaug"], one["encoder_conf"]["pos"]) for one in sets.pop("SpecAugment and CAPE")
    ]
    assert augmented == [(s, pos) for pos in ("sinpos", "cape") for s in (None, "cape_specaug")]
    shifts = ("max_global_scale", "max_global_shift", "max_local_shift")
    assert values("global shift", *shifts) == [(1.0, s, None) for s in (7.5, 15.0, 30.0)]
    assert values("local shift", *shifts) == [(1.0, 30.0, 0.0), (1.0, 30.0, None)]
    own = 1.1 if recipe.startswith("wsj") else 2.0
    assert values("global scale", *shifts) == [(1.0, 30.0, None), (own, 30.0, None)]
    relative = [one["encoder_conf"].get("relpos_context") for one in sets["relative positions"]]
    assert relative == [26.8, 6.0, 27.6, None]


def test_capes_part_in_the_augmentations_figure_is_the_shifts_alone(task):
    for entry in TABLE["sets"]["SpecAugment and CAPE"][2:]:
        found = ablated(task, "tedlium3/train_asr", *entry)["encoder_conf"]
        assert (found["max_global_scale"], found["max_global_shift"]) == (1.0, 30.0)


def test_the_readmes_librispeech_sets_are_what_the_evaluation_reads(tmp_path):
    pytest.importorskip("jiwer")
    import soundfile

    from cape_plugins.evaluation.espnet import testset

    readme = (CONFIGS.parents[1] / "integrations" / "espnet" / "README.md").read_text("utf-8")
    blocks = [block.split("```")[0] for block in readme.split("```sh\n")[1:]]
    (script,) = [block for block in blocks if "LibriSpeech/" in block]
    for name, chapter in (("test-clean", "1089/134686"), ("test-other", "116/288045")):
        folder = tmp_path / "LibriSpeech" / name / chapter
        folder.mkdir(parents=True)
        prefix = chapter.replace("/", "-")
        for index in range(2):
            soundfile.write(folder / f"{prefix}-000{index}.flac", torch.zeros(800).numpy(), 16000)
        lines = [f"{prefix}-000{index} HE SAID\n" for index in range(2)]
        (folder / f"{prefix}.trans.txt").write_text("".join(lines))
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True)
    names = ("test-clean", "test-other")
    clean, other = testset.open_sets([str(tmp_path / "data" / name) for name in names])
    assert [u.name for u in clean.utterances] == ["1089-134686-0000", "1089-134686-0001"]
    assert {u.text for u in (*clean.utterances, *other.utterances)} == {"he said"}


@pytest.mark.parametrize("samples", [0, 1, 256])
def test_audio_without_a_frame_is_what_espnets_decoding_calls_too_short(task, samples):
    from espnet2.bin.asr_inference import TooShortUttError

    model = build(task, "wsj/train_asr").eval()
    with pytest.raises(TooShortUttError, match=f"has {samples} samples and features need 257"):
        model.encode(torch.zeros(1, samples), torch.tensor([samples]))
    assert model.encode(torch.zeros(1, 257), torch.tensor([257]))[1].item() == 1


def test_the_readmes_quickstart_is_complete(task, tmp_path):
    readme = (CONFIGS.parents[1] / "README.md").read_text("utf-8")
    blocks = [block.split("```")[0] for block in readme.split("```yaml\n")[1:]]
    (quickstart,) = [block for block in blocks if "encoder: cape_transformer" in block]
    (tmp_path / "quickstart.yaml").write_text(quickstart)
    recipe = str(tmp_path / "quickstart")
    model = step(task, recipe).eval()
    assert model.encoder.pos == "cape"
    speech, lengths = torch.randn(2, 16000), torch.tensor([16000, 14000])
    _, stats, _ = model(speech, lengths, torch.tensor([[3, 2], [4, 3]]), torch.tensor([2, 2]))
    for _, criterion, _ in parse(task, recipe).best_model_criterion:
        assert stats[criterion] is not None


def test_the_seq2seq_variants_differ_in_positions_alone(task):
    recipe = "tedlium3/train_asr_seq2seq"
    recipes = [settings(task, recipe, pos) for pos in ("nopos", "relpos")]
    assert [recipe["encoder_conf"].pop("pos") for recipe in recipes] == ["nopos", "relpos"]
    assert recipes[1]["encoder_conf"].pop("relpos_context") == 26.8
    assert recipes[0] == recipes[1]
    assert recipes[0]["decoder_conf"]["num_blocks"] == 6


def test_the_seq2seq_recipes_decoder_drops_layers(task):
    recipe = "tedlium3/train_asr_seq2seq"
    rates = [parse(task, recipe).decoder_conf["layer_drop_rate"], 0.999999]
    assert rates[0] == 0.2
    quiet = [f"{name}dropout_rate=0.0" for name in ("", "self_attention_")]
    for rate in rates:
        options = [f"layer_drop_rate={rate}", *quiet]
        more = [part for option in options for part in ("--decoder_conf", option)]
        torch.manual_seed(0)
        decoder = build(task, recipe, *more).decoder
        tokens, lengths = torch.tensor([[6, 3, 2]]), torch.tensor([3])
        inputs = torch.randn(1, 9, 32), torch.tensor([9]), tokens, lengths
        outs = [decoder.train()(*inputs)[0] for _ in range(8)]
        if rate == rates[0]:  # 6 layers: all kept in one batch of four
            assert not all(torch.equal(out, outs[0]) for out in outs)
        else:
            assert all(torch.equal(out, outs[0]) for out in outs)
            assert not torch.equal(decoder.eval()(*inputs)[0], outs[0])


@pytest.mark.parametrize("name", ["ctc", "seq2seq"])
def test_asr_inference_accepts_the_decoding_configs(name):
    from espnet2.bin.asr_inference import get_parser

    path = CONFIGS / f"decode_asr_{name}.yaml"
    arguments = ["--config", str(path), "--output_dir", "unused"]
    arguments += ["--data_path_and_name_and_type", "wav.scp,speech,sound"]
    parsed = get_parser().parse_args(arguments)
    assert (parsed.beam_size, parsed.lm_weight) == (1, 0.0)
    assert parsed.ctc_weight == (1.0 if name == "ctc" else 0.0)


def test_the_digits_study_trains_with_options_that_asr_train_knows(task):
    words = pytest.importorskip("cape_plugins.experiments.hosts").words
    study = yaml.safe_load((CONFIGS.parent / "studies" / "digits.yaml").read_text())
    assert study["recipe"] == "../espnet/digits.yaml"
    plain = parse(task, "digits")
    assert plain.scheduler_conf["total_steps"] == plain.max_epoch * plain.num_iters_per_epoch
    longest_test = 25.0  # seconds, some 40 digits; positions are centred
    for name, variant in study["variants"].items():
        model = step(task, "digits", *words(variant["options"], espnet=True))
        assert model.encoder.pos == variant["options"]["encoder_conf"]["pos"]
        assert name.startswith(model.encoder.pos)
        if model.encoder.pos == "cape":
            reached = model.encoder.position.augmentation.max_global_shift
            assert reached >= longest_test / 2
        assert (type(model.frontend).__name__ == "CapeFbank") == name.endswith("padding_free")
