"""A checkpoint says which variant it is of: another one is refused before training."""

from argparse import Namespace

import pytest
import torch

from cape_plugins import sinusoid_1d
from cape_plugins.fairseq.start import check_start
from cape_plugins.mark import variant_of
from fairseq_support import configure


def test_weights_of_another_variant_are_refused(build):
    state = build("cape_rope").half().state_dict()
    build("cape_rope").load_state_dict(state)
    with pytest.raises(ValueError, match=r"--pos cape_rope.* cape\b.*--save-dir"):
        build("cape").load_state_dict(state)


def test_either_side_says_which_variant_it_is_of_and_what_changes_results(build, build_lm):
    model = build("cape", source_scale=1.1632)
    for side in (model.encoder, model.decoder, build_lm("cape").decoder):
        assert variant_of(side.state_dict()) == "cape"
    kept = model.half().state_dict()
    assert kept["encoder.positions.mark.source_scale"] == pytest.approx(1.1632)
    assert kept["encoder.positions.mark.source_bos"] == 1


def test_settings_of_training_are_a_warning_and_those_of_evaluation_an_error(
    build, build_lm, caplog
):
    build_lm("cape", max_global_shift=7.0).load_state_dict(build_lm("cape").state_dict())
    assert "--max-global-shift 5" in caplog.text
    found = build("cape").state_dict()
    for option, value in (("source_scale", 1.5), ("source_bos", "false"), ("frequency_scale", 2.0)):
        flag = f"--{option.replace('_', '-')}"
        with pytest.raises(ValueError, match=f"{flag} 1"):
            build("cape", **{option: value}).load_state_dict(found)


def test_a_checkpoint_that_is_refused_has_changed_nothing(build):
    model = build("cape")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(ValueError, match="--pos sinpos"):
        model.load_state_dict(build("sinpos", seed=1).state_dict())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_training_does_not_start_from_another_variant(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    history = [{"num_updates": 1, "criterion_name": "CrossEntropy", "lr_scheduler_state": {}}]
    state = {"cfg": {"model": {"pos": "sinpos"}}, "model": {}, "optimizer_history": history}
    torch.save({**state, "extra_state": {"epoch": 1, "batch_offset": 0}}, path)
    default = dict(restore_file="checkpoint_last.pt", finetune_from_model=None)
    default.update(continue_once=None, save_dir=str(tmp_path / "elsewhere"))

    def check(pos, **where):
        check_start(pos, Namespace(**{**default, **where}))

    check("cape", finetune_from_model=str(path))  # it takes the weights alone
    names = ("restore_file", "continue_once")
    for where in ({"save_dir": str(tmp_path)}, *({name: str(path)} for name in names)):
        check("sinpos", **where)
        with pytest.raises(ValueError, match=r"--pos sinpos.*--pos cape"):
            check("cape", **where)
    check("cape")


def without_mark(state):
    """As fairseq's own Transformer has it."""
    return {name: value for name, value in state.items() if ".mark." not in name}


@pytest.mark.parametrize("pos", ["nopos", "cape", "relpos", "abspos"])
def test_weights_of_fairseqs_own_transformer_are_completed_and_said(build, pos, caplog):
    caplog.set_level("INFO")
    model, theirs = build(pos), build("nopos", seed=1).state_dict()
    stock = without_mark(theirs)
    stock["encoder.embed_positions._float_tensor"] = torch.ones(1)
    model.load_state_dict(stock)
    assert f"{len(stock) - 3} weights" in caplog.text
    for name, value in model.state_dict().items():
        if name in stock and not name.endswith("version"):
            assert torch.equal(value, stock[name])


def test_weights_of_another_size_are_refused_in_one_line(build):
    stock = without_mark(build("nopos", decoder_ffn_embed_dim=8).state_dict())
    for pos, state, message in (
        ("cape", stock, r"\(8, 16\).*\(32, 16\)"),
        ("relpos", build("relpos", relpos_context=3).state_dict(), "--relpos-context 3"),
    ):
        with pytest.raises(ValueError, match=message):
            build(pos).load_state_dict(state)


SIZES = "--cpu --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-attention-heads 2"
SIZES += " --decoder-attention-heads 2 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32"


def test_sinpos_is_fairseqs_own_transformer_but_for_its_sinusoids(data):
    """Those begin at 2 and have the sines first; with that, and its frequencies, they are equal."""
    base = 10_000 ** (8 / 7)  # of 8 frequencies the last is 1/10000 in fairseq
    ours, stock = (
        task.build_model(config.model).eval()
        for config, task in (
            configure(data, f"{SIZES} --pos sinpos --base {base}", "cape_transformer"),
            configure(data, SIZES, "transformer"),
        )
    )
    ours.load_state_dict(stock.state_dict())
    source, target = torch.tensor([[5, 6, 7, 2], [1, 8, 9, 2]]), torch.tensor([[2, 10, 11]] * 2)
    for stack, tokens in ((stock.encoder, source), (stock.decoder, target)):
        real = tokens.ne(1)
        places = real.cumsum(1) - 1.0
        sines, cosines = stack.embed_positions(tokens).chunk(2, 2)
        found = torch.cat([cosines, sines], 2)[real]
        torch.testing.assert_close(found, sinusoid_1d(places + 2, 16, base=base)[real])
        begin_at_0 = sinusoid_1d(places, 16, base=base) * real[..., None]
        stack.embed_positions.forward = lambda *_, of=begin_at_0, **__: of
    expected = stock(source, None, target)[0]
    torch.testing.assert_close(ours(source, None, target)[0], expected)
