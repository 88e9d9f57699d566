"""Names and options: wrong ones fail before any data is read, saying what is allowed."""

import dataclasses
import shlex
import sys

import pytest

pytest.importorskip("fairseq")

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY

import cape_plugins.fairseq
from cape_plugins.fairseq.config import FairseqCapeConfig, TokenSettings
from cape_plugins.variants import get, names
from cape_support import run

FAR = ("max-global-shift", "max-local-shift", "max-global-scale", "random-range")
WRONG = [
    ("--max-global-shift -1", "max_global_shift must be a finite number ≥ 0"),
    *((f"--{name} 1e30", rf"{name.replace('-', '_')} must be at most 100000") for name in FAR),
    ("--source-scale 1e30", "source_scale must be > 0 and at most 100000, or 0 to count it"),
    ("--source-scale -1", "source_scale must be > 0 and at most 100000, or 0 to count it"),
    ("--pos random --random-range 0", "random_range must be finite and > 0, got 0"),
    ("--pos rope --max-global-shift 6", "rope takes --frequency-scale: leave it out"),
    ("--pos nopos --max-global-shift 6", "nopos takes none of these: leave it out"),
    ("--encoder-learned-pos", "replaced by --pos abspos"),
    ("--no-token-positional-embeddings", "replaced by --pos nopos"),
    ("--relpos-context 0", "relpos_context, in tokens, must be an integer ≥ 1"),
    ("--admin-init --encoder-normalize-before", "is for post-norm models"),
    ("--admin-scales 1,1.5", "are for --admin-init"),
]


def parse(*arguments, arch="cape_transformer_tiny", parser=None, task=None):
    """The command line of fairseq-train, on data that does not exist."""
    task = task or ("language_modeling" if arch.endswith("lm") else "translation")
    arguments = ["/nowhere", "--arch", arch, "--task", task, *arguments]
    return options.parse_args_and_arch(parser or options.get_training_parser(), arguments)


def parsed_model(*arguments, **arch):
    return convert_namespace_to_omegaconf(parse(*arguments, **arch)).model


def assert_refused(message, *arguments, **options):
    with pytest.raises(ValueError, match=message):
        parse(*arguments, **options)


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
    expected = vars(parse(arch=stock))
    if stock == "transformer_lm":  # a dataclass, unlike fairseq's other Transformer
        expected = dict(parsed_model(arch=stock))
    model = parsed_model(arch=ours)
    shared = set(expected) & set(model)
    assert len(shared) >= 40
    # elsewhere it leaves None where ours has the default
    differing = {n for n in shared if expected[n] is not None and expected[n] != model[n]}
    assert differing <= {"arch", "_name", "no_token_positional_embeddings"}


def test_the_other_architectures_and_flags_that_replace_their_sizes():
    deep = parsed_model(arch="cape_transformer_wmt_en_de_18l")
    assert (deep.encoder_layers, deep.decoder_layers, deep.encoder_embed_dim) == (18, 18, 512)
    tiny = parsed_model("--encoder-layers", "3")
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.encoder_embed_dim) == (3, 2, 64)
    assert (tiny.decoder_ffn_embed_dim, tiny.decoder_attention_heads) == (128, 2)


def test_registering_twice_changes_nothing():
    before = dict(ARCH_MODEL_REGISTRY)
    cape_plugins.fairseq.register()
    assert before == ARCH_MODEL_REGISTRY


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


BOTH_SIDES = ("source", "encoder", "cross")  # a language model has none


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda value: value.split()[0])
def test_wrong_values_fail_before_data_are_read(wrong, message):
    given = shlex.split(wrong)
    assert_refused(message, *given, arch="cape_transformer_wmt_en_de_18l")
    if not any(word in wrong for word in BOTH_SIDES):
        assert_refused(message, *given, arch="cape_transformer_lm")


def test_an_option_of_the_settings_is_a_flag_with_its_default_and_its_help():
    parser = options.get_training_parser()
    parse(arch="cape_transformer_lm", parser=parser)
    actions = {action.dest: action for action in parser._actions}
    for field in dataclasses.fields(TokenSettings):
        assert actions[field.name].help == field.metadata["help"]
        assert getattr(FairseqCapeConfig(), field.name) == field.default
    assert actions["pos"].choices == list(names(1))


@pytest.mark.parametrize(
    "allowed",
    [
        "--pos nopos --max-global-shift 5 --source-scale 0 --relpos-context 150",  # the defaults
        "--pos cape_alibi --encoder-embed-dim 15 --encoder-attention-heads 3",  # no sinusoids
        "--max-source-positions 1 --source-scale 100000 --max-global-shift 100000",
    ],
)
def test_what_is_not_wrong_is_taken(allowed):
    assert parse(*allowed.split()).arch == "cape_transformer_tiny"


# option → another value than the default
OPTIONS = dict(max_global_shift=10, max_local_shift=0.25, max_global_scale=1.1, source_scale=1.1)
OPTIONS |= dict(relpos_context=10, random_range=50, frequency_scale=0.5)


@pytest.mark.parametrize("pos", names(1))
def test_an_option_that_the_variant_does_not_take_is_refused(pos):
    message = "max_global_scale must be a finite number ≥ 1"  # whatever the variant
    assert_refused(message, "--pos", pos, "--max-global-scale", "0.5")
    for option, value in OPTIONS.items():
        flag = f"--{option.replace('_', '-')}"
        given = ["--pos", pos, flag, str(value)]
        if option in get(pos).taken(axes=1):
            assert getattr(parse(*given), option) == value
        else:
            assert_refused(rf"{flag} = .* is for .*; {pos} takes", *given)


def test_wrong_values_fail_without_a_command_line_too(build):
    with pytest.raises(ValueError, match=r"--max-global-shift = 10\.0 is for .*; sinpos takes"):
        build("sinpos", max_global_shift=10)


@pytest.mark.parametrize(
    ("pos", "sizes", "message"),
    [
        ("cape", dict(encoder_embed_dim=15, encoder_attention_heads=5), "dim must be even"),
        (
            "rope",
            dict(decoder_embed_dim=12, decoder_attention_heads=4),
            "rotary positions .* got 3",
        ),
    ],
)
def test_sizes_that_a_variant_cannot_serve_are_said_when_the_model_is_built(
    build, pos, sizes, message
):
    with pytest.raises(ValueError, match=message):
        build(pos, **sizes)


def test_options_have_the_defaults_of_the_paper():
    model = parsed_model()
    assert (str(model.pos), model.admin_init, str(model.source_bos)) == ("cape", False, "auto")
    assert (model.max_global_shift, model.max_local_shift, model.max_global_scale) == (5, 0.5, 1)
    assert (model.source_scale, model.relpos_context, model.random_range) == (0, 150, 256)


@pytest.mark.parametrize("model", ["transformer", "transformer_lm"])
def test_every_flag_of_the_stock_model_exists(model):
    def flags(arch):
        parser = options.get_training_parser()
        parse(arch=arch, parser=parser)
        return {flag for action in parser._actions for flag in action.option_strings}

    ours, stock = flags(f"cape_{model}"), flags(model)
    assert stock <= ours
    of_source = {flag for flag in ours - stock if flag.startswith("--source-")}
    assert len(of_source) == (2 if model == "transformer" else 0)
