"""Names and options: wrong ones fail before any data is read, saying what is allowed."""

import re
from types import SimpleNamespace

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from cape_plugins.fairseq import __main__ as flags
from cape_plugins.fairseq.architectures import ARCHITECTURES, MODELS
from cape_plugins.fairseq.options import (
    HOST,
    FairseqCapeConfig,
    aligns_source,
    choose,
)
from cape_plugins.variants import get, names

WRONG = [
    ("cape", dict(max_global_shift=-1.0)),
    ("cape", dict(max_local_shift=-1.0)),
    ("cape_rope", dict(max_global_scale=0.5)),
    ("random", dict(random_range=0.0)),
    ("relpos", dict(relpos_context=0)),
    ("rope", dict(max_global_shift=6.0)),
    ("sinpos", dict(no_token_positional_embeddings=True)),
    ("sinpos", dict(decoder_learned_pos=True)),
    ("cape", dict(admin_scales="1,1.5")),
    ("cape", dict(admin_init=True, decoder_normalize_before=True)),
    ("cape", dict(decoder_attention_heads=5, decoder_embed_dim=15)),
]
WRONG_OF_SOURCE = [
    ("cape", dict(source_scale=-1.0)),
    ("cape", dict(encoder_attention_heads=5, encoder_embed_dim=15)),
    ("rope", dict(encoder_attention_heads=4, encoder_embed_dim=12)),
    ("sinpos", dict(encoder_learned_pos=True)),
    ("cape", dict(admin_init=True, encoder_normalize_before=True)),
]


def named(wrong: dict) -> str:
    """What an error about these options says: the last of them, as an option or a flag."""
    *_, last = wrong
    return "dim|channels" if last.endswith("embed_dim") else last.replace("_", "[-_]")


def parse(*arguments, arch="cape_transformer_tiny", parser=None):
    """The command line of fairseq-train, on data that does not exist."""
    task = "language_modeling" if arch.endswith("lm") else "translation"
    arguments = ["/nowhere", "--arch", arch, "--task", task, *arguments]
    return options.parse_args_and_arch(parser or options.get_training_parser(), arguments)


def flags_of(arch: str) -> set[str]:
    """Those of fairseq-train, once it knows the model."""
    parse(arch=arch, parser=(parser := options.get_training_parser()))
    return {*re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", parser.format_help())}


def parsed_model(*arguments, **arch):
    return convert_namespace_to_omegaconf(parse(*arguments, **arch)).model


# fairseq has no architecture of 18 layers, and none for French of these sizes (section 4.3)
OTHERS = {"cape_transformer_wmt_en_de_18l", "cape_transformer_wmt_en_fr"}
STOCK = {name: name.removeprefix("cape_") for name in {*MODELS, *ARCHITECTURES} - OTHERS}
STOCK["cape_transformer_wmt_en_fr"] = "transformer_wmt_en_de"


@pytest.mark.parametrize(("ours", "stock"), sorted(STOCK.items()))
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
    assert (tiny.decoder_ffn_embed_dim, tiny.decoder_attention_heads) == (64, 2)


@pytest.mark.parametrize(("pos", "wrong"), WRONG + WRONG_OF_SOURCE)
def test_wrong_values_fail_before_a_model_is_built(build, pos, wrong):
    model = MODELS["cape_transformer"]
    given = {**vars(model.config()), "pos": pos, **wrong}
    for refused in (lambda: model.check_options(given), lambda: build(pos, **wrong)):
        with pytest.raises(ValueError, match=named(wrong)):
            refused()


@pytest.mark.parametrize(("pos", "wrong"), WRONG[8:11])
def test_in_a_language_model_too(build_lm, pos, wrong):
    with pytest.raises(ValueError, match=named(wrong)):
        build_lm(pos, **wrong)


def test_every_option_of_a_variant_is_a_flag_with_its_default():
    known = flags_of("cape_transformer")
    for name, one in HOST.ours.items():
        assert f"--{name.replace('_', '-')}" in known
        assert getattr(FairseqCapeConfig(), name) == HOST.default(one)
    assert type(parse("--pos", "relpos", "--relpos-context", "3").relpos_context) is int
    for flag, error in (("--pos", ValueError), ("--source-bos", SystemExit)):
        with pytest.raises(error):
            parse(flag, "nonsense")
    # what fairseq itself decides
    decided = {"--mean-normalize", "--spread", "--overflow", "--abspos-context", "--alibi-unit"}
    assert not decided & known


def test_a_command_prints_the_flags_about_positions(capsys):
    # fairseq-train --help prints no model's
    flags.main()
    shown = capsys.readouterr().out
    assert f"--pos is one of {', '.join(names(1))}" in shown
    for name in HOST.ours:
        assert f"--{name.replace('_', '-')} " in shown
    assert "--pos fire --pos-options: fire_width = 32: hidden channels" in shown


def test_another_packages_options_are_one_flag_and_mean_something_for_its_variant_alone(eight):
    """Nobody has to know them before --pos: these are registered after the flags were made."""
    chosen = choose({"pos": "fourier", "pos_options": '{"fourier_features": 8}'})
    assert chosen.options["fourier_features"] == 8
    with pytest.raises(ValueError, match="--pos conditional adds what depends on the content"):
        choose({"pos": "conditional"})
    wide = choose({"pos": "fourier", "pos_options": '{"fourier_wide": false}'})
    side = SimpleNamespace(embed_dim=12, attention_heads=3, layers=1)
    assert not wide.positions(side, longest=9).added.fourier_wide
    for pos, given, named in (
        (
            "rope",
            '{"fourier_features": 8}',
            "--pos-options fourier_features .* of fourier: rope",
        ),
        ("fourier", '{"fourier_featurs": 8}', "did you mean --pos-options fourier_features"),
        ("fourier", "fourier_features=8", "JSON"),
        ("fourier", "[8]", "JSON"),
        ("cape", '{"mean_normalize": true}', "--mean-normalize"),  # fairseq's own say
    ):
        with pytest.raises(ValueError, match=named):
            choose({"pos": pos, "pos_options": given})


@pytest.mark.parametrize(
    ("pos", "allowed"),
    [
        ("nopos", dict(max_global_shift=5.0, source_scale=0.0, relpos_context=150)),  # the defaults
        ("cape_alibi", dict(encoder_embed_dim=15, encoder_attention_heads=3)),  # no sinusoids
        ("cape", dict(max_source_positions=1, source_scale=1e3)),
    ],
)
def test_what_is_not_wrong_is_taken(build, pos, allowed):
    assert build(pos, **allowed).encoder.positions.pos == pos


# option → another value than the default
OPTIONS = dict(max_global_shift=10.0, max_local_shift=0.25, max_global_scale=1.1, source_scale=1.1)
OPTIONS |= dict(relpos_context=10, random_range=50.0, pose_range=90.0)
OPTIONS |= dict(frequency_scale=0.5, base=100.0)


@pytest.mark.parametrize("pos", ["nopos", "cape", "random_rope"])
def test_an_option_that_the_variant_does_not_take_is_refused(build, pos):
    variant = get(pos, axes=1)
    taken = {*variant.options(axes=1), *(["source_scale"] if aligns_source(variant) else [])}
    for name, value in OPTIONS.items():
        if name in taken:
            build(pos, **{name: value})
        else:
            flag = f"--{name.replace('_', '-')}"
            with pytest.raises(ValueError, match=f"{flag} .*{pos}"):
                parse("--pos", pos, flag, str(value))  # before data are read


def test_options_have_the_defaults_of_the_paper():
    model = parsed_model()
    assert (str(model.pos), model.admin_init, str(model.source_bos)) == ("cape", False, "auto")
    assert (model.max_global_shift, model.max_local_shift, model.max_global_scale) == (5, 0.5, 1)
    assert (model.source_scale, model.relpos_context) == (0, 150)
    assert model.random_range == model.pose_range == 256


@pytest.mark.parametrize("model", ["transformer", "transformer_lm"])
def test_every_flag_of_the_stock_model_exists(model):
    ours, stock = flags_of(f"cape_{model}"), flags_of(model)
    assert stock <= ours
    of_source = {flag for flag in ours - stock if flag.startswith("--source-")}
    assert len(of_source) == (2 if model == "transformer" else 0)
