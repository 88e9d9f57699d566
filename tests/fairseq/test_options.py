"""Names and options: wrong ones fail before any data is read, saying what is allowed."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("fairseq")

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY

import cape_plugins.fairseq
from cape_plugins.fairseq.architectures import ARCHITECTURES
from cape_plugins.variants import get, names

WRONG = [
    (["--max-global-shift", "-1"], "max_global_shift must be a finite number ≥ 0"),
    (["--max-global-shift", "nan"], "max_global_shift must be a finite number ≥ 0"),
    (
        ["--max-global-shift", "1e30"],
        r"max_global_shift must be at most 100000, got 1e\+30: beyond",
    ),
    (["--max-local-shift", "1e30"], "max_local_shift must be at most 100000"),
    (["--max-global-scale", "1e30"], "max_global_scale must be at most 100000"),
    (["--source-scale", "1e30"], "source_scale must be at most 100000"),
    (["--max-local-shift", "-0.5"], "max_local_shift must be a finite number ≥ 0"),
    (["--max-global-scale", "0.9"], "max_global_scale must be a finite number ≥ 1"),
    (["--source-scale", "-1"], "source_scale must be a finite number > 0, or 0"),
    (["--source-scale", "inf"], "source_scale must be a finite number > 0, or 0"),
    (["--encoder-embed-dim", "15"], "encoder_embed_dim: dim must be even"),
    (["--decoder-embed-dim", "15"], "decoder_embed_dim: dim must be even"),
    (["--encoder-learned-pos"], "replaced by --pos abspos"),
    (["--no-token-positional-embeddings"], "replaced by --pos nopos"),
    (["--relpos-context", "0"], "relpos_context must be an integer ≥ 1"),
    (["--pos", "relpos", "--cross-self-attention"], "does not go with --pos relpos,"),
    (
        ["--pos", "rope", "--decoder-embed-dim", "12", "--decoder-attention-heads", "4"],
        "--pos rope with --decoder-embed-dim 12 and --decoder-attention-heads 4: rotary positions",
    ),
    (["--pos", "relpos_first", "--cross-self-attention"], "does not go with --pos relpos_first,"),
    (["--admin-init", "--encoder-normalize-before"], "is for post-norm models"),
    (["--admin-init", "--admin-scales", "1,x"], "must be positive numbers with commas"),
    (["--admin-scales", "1,1.5"], "are for --admin-init"),
]


def parse(*arguments, arch="cape_transformer_tiny"):
    """The command line of fairseq-train, on data that does not exist."""
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, ["/nowhere", "--arch", arch, *arguments])


def assert_refused(capsys, message, *arguments, **options):
    """As argparse refuses: one line, exit status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        parse(*arguments, **options)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf": error: .*{message}", line)


def in_new_python(code, **env):
    return subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_architectures_are_known_by_name():
    assert set(ARCHITECTURES) == {
        "cape_transformer",
        "cape_transformer_iwslt_de_en",
        "cape_transformer_wmt_en_de",
        "cape_transformer_wmt_en_de_big",
        "cape_transformer_wmt_en_de_18l",
        "cape_transformer_wmt_en_fr",
        "cape_transformer_tiny",
    }
    assert {*ARCHITECTURES, "cape_transformer_lm"} <= set(ARCH_MODEL_REGISTRY)


STOCK = {
    "cape_transformer": "transformer",
    "cape_transformer_iwslt_de_en": "transformer_iwslt_de_en",
    "cape_transformer_wmt_en_de": "transformer_wmt_en_de",
    "cape_transformer_wmt_en_de_big": "transformer_wmt_en_de_big",
    "cape_transformer_wmt_en_fr": "transformer_wmt_en_de",
    "cape_transformer_lm": "transformer_lm",
}


@pytest.mark.parametrize(("ours", "stock"), STOCK.items())
def test_architectures_have_the_values_of_their_stock_namesakes(ours, stock):
    task = ["--task", "language_modeling"] if stock == "transformer_lm" else []
    expected = vars(parse(*task, arch=stock))
    if stock == "transformer_lm":  # a dataclass, unlike fairseq's other Transformer
        expected = dict(convert_namespace_to_omegaconf(parse(*task, arch=stock)).model)
    model = convert_namespace_to_omegaconf(parse(*task, arch=ours)).model
    shared = set(expected) & set(model)
    assert len(shared) >= 40
    # elsewhere it leaves None where ours has the default
    differing = {
        name: (expected[name], model[name])
        for name in shared
        if expected[name] is not None and expected[name] != model[name]
    }
    assert differing.keys() <= {"arch", "_name", "no_token_positional_embeddings"}


def test_the_deep_architecture_has_18_layers_on_each_side():
    model = convert_namespace_to_omegaconf(parse(arch="cape_transformer_wmt_en_de_18l")).model
    assert (model.encoder_layers, model.decoder_layers) == (18, 18)
    assert (model.encoder_embed_dim, model.encoder_ffn_embed_dim) == (512, 2048)


def test_registering_twice_changes_nothing():
    before = MODEL_REGISTRY["cape_transformer"]
    cape_plugins.fairseq.register()
    assert MODEL_REGISTRY["cape_transformer"] is before


SHOW = "from fairseq.models import ARCH_MODEL_REGISTRY as A; print('cape_transformer_tiny' in A)"


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_importing_the_package_first_registers_with_and_without_autoload(autoload):
    code = f"import cape_plugins.fairseq; {SHOW}"
    assert in_new_python(code, CAPE_PLUGINS_AUTOLOAD=autoload).strip() == "True"


def test_registers_when_a_submodule_is_imported_first():
    assert in_new_python(f"import cape_plugins.fairseq.transformer; {SHOW}").strip() == "True"


@pytest.mark.parametrize("arch", ["cape_transformer", "cape_transformer_wmt_en_de_18l"])
@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda v: v[0] if v else None)
def test_wrong_values_fail_whatever_the_architecture(arch, wrong, message, capsys):
    assert_refused(capsys, message, *wrong, arch=arch)


@pytest.mark.parametrize("pos", names(1))
def test_wrong_values_fail_whatever_the_variant(pos, capsys):
    message = "max_global_scale must be a finite number ≥ 1"
    assert_refused(capsys, message, "--pos", pos, "--max-global-scale", "0.5")


# option → flags that give it another value than the default
OPTIONS = {
    "max_global_shift": ["--max-global-shift", "10"],
    "max_local_shift": ["--max-local-shift", "0.25"],
    "max_global_scale": ["--max-global-scale", "1.1"],
    "source_scale": ["--source-scale", "1.1"],
    "relpos_context": ["--relpos-context", "10"],
    "relpos_values": ["--relpos-values"],
    "relpos_layers": ["--relpos-layers", "first"],
    "frequency_scale": ["--frequency-scale", "0.5"],
}


@pytest.mark.parametrize("pos", names(1))
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("arch", ["cape_transformer", "cape_transformer_tiny"])
def test_an_option_that_the_variant_does_not_take_is_refused(arch, pos, option, capsys):
    given = ["--pos", pos, *OPTIONS[option]]
    if option in get(pos).taken(axes=1):
        assert getattr(parse(*given, arch=arch), option) not in (None, 0, "all")
        return
    flag = OPTIONS[option][0]
    assert_refused(capsys, rf"{flag} = .* is for .*; {pos} takes", *given, arch=arch)


def test_a_default_that_is_given_is_not_refused():
    given = ["--max-global-shift", "5", "--source-scale", "0", "--relpos-layers", "all"]
    assert parse("--pos", "nopos", *given).max_global_shift == 5


def test_an_option_of_another_variant_is_refused_without_a_command_line_too(build):
    with pytest.raises(ValueError, match=r"--max-global-shift = 10\.0 is for cape.*; sinpos takes"):
        build("sinpos", max_global_shift=10.0)
    with pytest.raises(ValueError, match=r"--max-global-shift = 10\.0 is for cape.*; sinpos takes"):
        build_from_strings(pos="sinpos", max_global_shift=10.0, source_scale=0.0)


@pytest.mark.parametrize(
    ("flag", "allowed"),
    [
        ("--pos", list(names(1))),
        ("--source-bos", ["auto", "true", "false"]),
        ("--relpos-layers", ["all", "first"]),
    ],
)
def test_unknown_choices_are_refused_naming_the_known(flag, allowed, capsys):
    with pytest.raises(SystemExit):
        parse(flag, "something")
    message = capsys.readouterr().err
    assert f"argument {flag}: invalid choice: 'something'" in message
    assert all(choice in message for choice in allowed)


def test_wrong_values_fail_without_a_command_line_too(build):
    with pytest.raises(ValueError, match="source_scale must be a finite number > 0"):
        build("sinpos", source_scale=-1.0)
    with pytest.raises(ValueError, match="unknown variant 'relative': choose one of nopos"):
        build_from_strings(pos="relative")
    with pytest.raises(ValueError, match="source_bos must be one of auto, true, false"):
        build_from_strings(source_bos="maybe")


def build_from_strings(**values):
    """As a checkpoint does: a plain config, without the dataclass that knows the choices."""
    import dataclasses

    from omegaconf import OmegaConf

    from cape_plugins.fairseq.config import CapeTransformerConfig

    values = {**dataclasses.asdict(CapeTransformerConfig(source_scale=1.0)), **values}
    MODEL_REGISTRY["cape_transformer"].build_model(OmegaConf.create({"model": values}).model, None)


def test_options_of_cape_have_the_defaults_of_the_paper():
    model = convert_namespace_to_omegaconf(parse()).model
    assert str(model.pos) == "cape"
    assert (model.max_global_shift, model.max_local_shift, model.max_global_scale) == (5, 0.5, 1)
    assert (model.source_scale, str(model.source_bos)) == (0, "auto")
    assert (model.relpos_context, model.relpos_values, str(model.relpos_layers)) == (
        *(150, False, "all"),
    )
    assert model.admin_init is False


def test_sizes_of_an_architecture_give_way_to_flags():
    model = convert_namespace_to_omegaconf(parse("--encoder-layers", "3")).model
    assert (model.encoder_layers, model.decoder_layers, model.encoder_embed_dim) == (3, 2, 64)
    model = convert_namespace_to_omegaconf(parse(arch="cape_transformer_iwslt_de_en")).model
    assert (model.encoder_ffn_embed_dim, model.decoder_attention_heads) == (1024, 4)
    assert model.decoder_output_dim == 512


@pytest.mark.parametrize("model", ["transformer", "transformer_lm"])
def test_every_flag_of_the_stock_model_exists(model):
    assert flags(model) - flags(f"cape_{model}") == set()


def test_a_language_model_has_no_options_of_a_source():
    assert not {"--source-scale", "--source-bos"} & flags("cape_transformer_lm")


def flags(arch):
    parser = options.get_training_parser()
    options.parse_args_and_arch(parser, ["/nowhere", "--arch", arch])
    return {flag for action in parser._actions for flag in action.option_strings}


DECODER_ALONE = [
    case
    for case in WRONG
    if not any(word in flag for flag in case[0] for word in ("source", "encoder", "cross"))
]


@pytest.mark.parametrize(("wrong", "message"), DECODER_ALONE, ids=str)
def test_wrong_values_fail_in_a_language_model_too(wrong, message, capsys):
    assert_refused(capsys, message, *wrong, arch="cape_transformer_lm")


def test_an_option_of_another_variant_is_refused_in_a_language_model_too(capsys):
    given = ["--pos", "relpos", "--max-global-shift", "10"]
    message = r"--max-global-shift = 10\.0 is for cape.*; relpos takes"
    assert_refused(capsys, message, *given, arch="cape_transformer_lm")


@pytest.mark.parametrize("arch", ["cape_transformer_tiny", "cape_transformer_lm"])
def test_torchrun_without_a_world_size_is_refused(arch, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"torchrun started 2 processes, but .* is 1, so that"
    assert_refused(capsys, message, "--distributed-world-size", "1", arch=arch)
    assert parse("--distributed-world-size", "2", arch=arch).distributed_world_size == 2
