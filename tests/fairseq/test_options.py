"""Names and options: wrong ones fail before any data is read, saying what is allowed."""

import dataclasses
import re
import shlex
import sys

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import OmegaConf

import cape_plugins.fairseq
from cape_plugins.fairseq.architectures import ARCHITECTURES
from cape_plugins.fairseq.config import CapeTransformerConfig, TokenSettings
from cape_plugins.variants import get, names
from cape_support import run

WRONG = [
    ("--max-global-shift -1", "max_global_shift must be a finite number ≥ 0"),
    ("--max-global-shift 1e30", r"max_global_shift must be at most 100000, got 1e\+30"),
    ("--max-local-shift 1e30", "max_local_shift must be at most 100000"),
    ("--max-global-scale 1e30", "max_global_scale must be at most 100000"),
    ("--source-scale 1e30", "source_scale must be at most 100000"),
    ("--source-scale -1", "source_scale must be a finite number > 0, or 0"),
    ("--source-scale inf", "source_scale must be a finite number > 0, or 0"),
    (
        "--encoder-embed-dim 15 --encoder-attention-heads 5",
        "--encoder-embed-dim 15 and .*: dim must be even",
    ),
    (
        "--decoder-embed-dim 15 --decoder-attention-heads 5",
        "--decoder-embed-dim 15 and .*: dim must be even",
    ),
    ("--encoder-attention-heads 0", "heads 0: heads must be ≥ 1, and divide the channels"),
    ("--decoder-attention-heads 7", "heads 7: heads must be ≥ 1, and divide the channels"),
    ("--max-source-positions 0", "--max-source-positions must be ≥ 1, in tokens, got 0"),
    ("--max-target-positions 0", "--max-target-positions must be ≥ 1, in tokens, got 0"),
    ("--pos random --random-range 0", "random_range must be finite and > 0, got 0"),
    ("--attention-logn 1", "attention_logn must be the number of tokens"),
    ("--attention-logn 30 --cross-self-attention", "does not .* --attention-logn 30,"),
    ("--pos rope --max-global-shift 6", "rope takes --frequency-scale: leave it out"),
    ("--pos nopos --max-global-shift 6", "nopos takes none of these: leave it out"),
    ("--encoder-learned-pos", "replaced by --pos abspos"),
    ("--no-token-positional-embeddings", "replaced by --pos nopos"),
    ("--relpos-context 0", "relpos_context must be an integer ≥ 1"),
    ("--pos relpos --cross-self-attention", "does not go with --pos relpos,"),
    (
        "--pos rope --decoder-embed-dim 12 --decoder-attention-heads 4",
        "--pos rope with --decoder-embed-dim 12 and .* 4: rotary positions",
    ),
    ("--pos relpos_first --cross-self-attention", "does not go with --pos relpos_first,"),
    ("--admin-init --encoder-normalize-before", "is for post-norm models"),
    ("--admin-init --admin-scales 1,x", r"must be \d+ positive numbers with commas"),
    ("--admin-scales 1,1.5", "are for --admin-init"),
    ("--admin-init --admin-scales 1,1.5", r"must be \d+ positive numbers .*, got '1,1.5'"),
    ("--optimizer radam --adam-betas 0.9", "--adam-betas of two numbers"),
    ("--optimizer radam --adam-betas '(0.9, 1.5)'", "--adam-betas of two numbers"),
    ("--optimizer radam --adam-eps -1", "finite --adam-eps and --weight-decay ≥ 0"),
    ("--optimizer radam --weight-decay nan", "finite --adam-eps and --weight-decay ≥ 0"),
]


def parse(*arguments, arch="cape_transformer_tiny", parser=None):
    """The command line of fairseq-train, on data that does not exist."""
    parser = parser or options.get_training_parser()
    return options.parse_args_and_arch(parser, ["/nowhere", "--arch", arch, *arguments])


def parsed_model(*arguments, **arch):
    return convert_namespace_to_omegaconf(parse(*arguments, **arch)).model


def assert_refused(capsys, message, *arguments, **options):
    """As argparse refuses: one line, exit status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        parse(*arguments, **options)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf": error: .*{message}", line)


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
        expected = dict(parsed_model(*task, arch=stock))
    model = parsed_model(*task, arch=ours)
    shared = set(expected) & set(model)
    assert len(shared) >= 40
    # elsewhere it leaves None where ours has the default
    differing = {n for n in shared if expected[n] is not None and expected[n] != model[n]}
    assert differing <= {"arch", "_name", "no_token_positional_embeddings"}


def test_the_other_architectures_and_flags_that_replace_their_sizes():
    deep = parsed_model(arch="cape_transformer_wmt_en_de_18l")
    assert (deep.encoder_layers, deep.decoder_layers) == (18, 18)
    assert (deep.encoder_embed_dim, deep.encoder_ffn_embed_dim) == (512, 2048)
    tiny = parsed_model("--encoder-layers", "3")
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.encoder_embed_dim) == (3, 2, 64)
    assert (tiny.decoder_ffn_embed_dim, tiny.decoder_attention_heads) == (128, 2)
    assert {*STOCK, *ARCHITECTURES} <= set(ARCH_MODEL_REGISTRY)
    assert {*ARCHITECTURES} - {*STOCK} == {
        f"cape_transformer_{n}" for n in ("tiny", "wmt_en_de_18l")
    }


def test_registering_twice_changes_nothing():
    before = MODEL_REGISTRY["cape_transformer"]
    cape_plugins.fairseq.register()
    assert MODEL_REGISTRY["cape_transformer"] is before


SHOW = "from fairseq.models import ARCH_MODEL_REGISTRY as A; print('cape_transformer_tiny' in A)"


@pytest.mark.release
@pytest.mark.parametrize(
    ("module", "autoload"),
    [("cape_plugins.fairseq", "0"), ("cape_plugins.fairseq.transformer", "1")],
)
def test_importing_the_package_first_registers_with_and_without_autoload(module, autoload):
    code = ("-W", "error::RuntimeWarning", "-c", f"import {module}; {SHOW}")
    status, output = run(sys.executable, *code, CAPE_PLUGINS_AUTOLOAD=autoload)
    assert (status, output.splitlines()[-1]) == (0, "True")


# a language model has neither
BOTH_SIDES = ("source", "encoder", "cross")


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda value: value.split()[0])
def test_wrong_values_fail_in_one_line_before_data_are_read(wrong, message, capsys):
    given = shlex.split(wrong)
    assert_refused(capsys, message, *given, arch="cape_transformer_wmt_en_de_18l")
    if not any(word in wrong for word in BOTH_SIDES):
        assert_refused(capsys, message, *given, arch="cape_transformer_lm")


def test_only_sinusoids_need_an_even_width(build):
    sizes = {f"{side}_embed_dim": 15 for side in ("encoder", "decoder")}
    heads = {f"{side}_attention_heads": 3 for side in ("encoder", "decoder")}
    model = build("cape_alibi", train=True, **sizes, **heads)
    model(torch.tensor([[5, 6, 2]]), None, torch.tensor([[2, 10]]))[0].sum().backward()


def test_an_option_of_the_settings_is_a_flag_with_its_default_and_its_help():
    parser = options.get_training_parser()
    args = parse("--attention-logn", "30", arch="cape_transformer_lm", parser=parser)
    assert args.attention_logn == 30
    actions = {action.dest: action for action in parser._actions}
    for field in dataclasses.fields(TokenSettings):
        assert actions[field.name].help == field.metadata["help"]
        assert getattr(CapeTransformerConfig(), field.name) == field.default


# option → another value than the default
OPTIONS = dict(max_global_shift=10, max_local_shift=0.25, max_global_scale=1.1, source_scale=1.1)
OPTIONS |= dict(relpos_context=10, random_range=50, frequency_scale=0.5)


@pytest.mark.parametrize("pos", names(1))
def test_an_option_that_the_variant_does_not_take_is_refused(pos, capsys):
    message = "max_global_scale must be a finite number ≥ 1"  # whatever the variant
    assert_refused(capsys, message, "--pos", pos, "--max-global-scale", "0.5")
    for option, value in OPTIONS.items():
        flag = f"--{option.replace('_', '-')}"
        given = ["--pos", pos, flag, str(value)]
        if option in get(pos).taken(axes=1):
            assert getattr(parse(*given), option) == value
        else:
            assert_refused(capsys, rf"{flag} = .* is for .*; {pos} takes", *given)


def test_a_default_that_is_given_is_not_refused():
    given = ["--max-global-shift", "5", "--source-scale", "0", "--relpos-context", "150"]
    assert parse("--pos", "nopos", *given).max_global_shift == 5


def test_what_is_just_allowed_and_what_radam_alone_refuses_is_taken():
    given = parse("--max-source-positions", "1", "--optimizer", "adam", "--weight-decay", "-1")
    assert (given.max_source_positions, given.weight_decay) == (1, -1)


@pytest.mark.parametrize(
    ("flag", "allowed"), [("--pos", list(names(1))), ("--source-bos", ["auto", "true", "false"])]
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
    with pytest.raises(ValueError, match=r"--max-global-shift = 10\.0 is for cape.*; sinpos takes"):
        build("sinpos", max_global_shift=10.0)
    # as in a checkpoint: a plain config, without the dataclass that knows the choices
    values = {**dataclasses.asdict(CapeTransformerConfig(source_scale=1.0)), "pos": "relative"}
    config = OmegaConf.create({"model": values}).model
    with pytest.raises(ValueError, match="unknown variant 'relative': choose one of nopos"):
        MODEL_REGISTRY["cape_transformer"].build_model(config, None)


def test_translation_models_name_that_of_language_modeling(dictionary):
    task = LanguageModelingTask(LanguageModelingConfig(), dictionary)
    with pytest.raises(ValueError, match="no source: give --arch cape_transformer_lm"):
        MODEL_REGISTRY["cape_transformer"].build_model(CapeTransformerConfig(), task)


def test_options_of_cape_have_the_defaults_of_the_paper():
    model = parsed_model()
    assert str(model.pos) == "cape"
    assert (model.max_global_shift, model.max_local_shift, model.max_global_scale) == (5, 0.5, 1)
    assert (model.source_scale, str(model.source_bos)) == (0, "auto")
    assert (model.relpos_context, model.random_range) == (150, 256)
    assert model.admin_init is False


@pytest.mark.parametrize("model", ["transformer", "transformer_lm"])
def test_every_flag_of_the_stock_model_exists(model):
    def flags(arch):
        parser = options.get_training_parser()
        parse(arch=arch, parser=parser)
        return {flag for action in parser._actions for flag in action.option_strings}

    ours = flags(f"cape_{model}")
    assert flags(model) <= ours
    # a language model has no options of a source
    of_source = {"--source-scale", "--source-bos"}
    assert of_source & ours == (set() if model == "transformer_lm" else of_source)


@pytest.mark.parametrize("arch", ["cape_transformer_tiny", "cape_transformer_lm"])
def test_torchrun_without_a_world_size_is_refused(arch, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"torchrun started 2 processes, but .* is 1, so that"
    assert_refused(capsys, message, "--distributed-world-size", "1", arch=arch)
    assert parse("--distributed-world-size", "2", arch=arch).distributed_world_size == 2
