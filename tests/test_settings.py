"""The options that all hosts have, and what a checkpoint keeps of them."""

import copy
import dataclasses
import pickle
from typing import ClassVar

import pytest
import torch
from cape_plugins.settings import PositionSettings, SequenceSettings, option, split_options
from torch import nn

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings
from cape_plugins.mark import ABSENT, SLOTS, VariantMark


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens(SequenceSettings):
    mean_normalize: ClassVar[bool] = False
    max_global_shift: float = option(5.0, "in tokens")
    max_local_shift: float | None = option(0.5, "in tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patches(PositionSettings):
    axes: ClassVar[int] = 2


@pytest.mark.parametrize("pos", variants.names(1))
def test_sequences_build_every_variant_from_the_options_it_takes(pos):
    Tokens(pos=pos).refuse_options()  # defaults are nobody's wish
    settings = Tokens(pos=pos, random_range=7.0)
    position = settings.embedding(8, max_length=9)
    assert (position.pos, position.axes, position.dim) == (pos, 1, 8)
    expected = dict(random_range=(0.0, 7.0), max_global_shift=5.0, max_local_shift=0.5)
    expected |= dict(mean_normalize=False, max_global_scale=1.0)
    if pos in ("cape_rope", "cape_alibi"):
        expected["max_global_shift"] = 0.0  # changes no distance
    for name, value in vars(position.augmentation).items():
        assert value == expected.get(name, True)
    sizes = AttentionSettings(head_dim=4, heads=2)
    kinds = [type(layer) for layer in settings.attention_layers(2, sizes)]
    assert kinds == [type(layer) for layer in variants.attention_layers(pos, 2, sizes)]


@pytest.mark.parametrize("pos", variants.names(2))
def test_images_have_theirs(pos):
    position = Patches(pos=pos, max_global_scale=1.4, frequency_scale=0.2).embedding(8)
    assert position.axes == 2
    assert getattr(position.augmentation, "max_global_scale", 1.4) == 1.4
    assert getattr(position.augmentation, "mean_normalize", True)
    taken = "frequency_scale" in variants.get(pos).taken(2)
    assert position.frequency_scale == (0.2 if taken else 1.0)


def test_options_of_the_call_come_before_those_of_the_settings_and_typos_are_refused():
    settings = Tokens(pos="cape")
    assert settings.embedding(8, mean_normalize=True).augmentation.mean_normalize
    assert settings.embedding(8, base=100.0).base == 100.0
    assert settings.embedding(8, max_length=9).pos == "cape"  # of another variant: left alone
    with pytest.raises(TypeError, match="max_lenght"):
        settings.embedding(8, max_lenght=9)


def test_no_local_shift_of_its_own_is_the_hosts_at_each_forward():
    for given, built in ((None, 0.0), ((0.1, 0.2), (0.1, 0.2))):
        position = Patches(pos="cape", max_local_shift=given).embedding(8)
        assert position.augmentation.max_local_shift == built


def test_log_n_reaches_every_layer():
    sizes = AttentionSettings(head_dim=4, heads=2)
    layers = Tokens(pos="cape", attention_logn=50).attention_layers(2, sizes)
    assert [layer.logn for layer in layers] == [50, 50]
    assert Tokens(pos="cape", attention_logn=0).attention_layers(2, sizes) == [None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(pos="rope_mixed"), "unknown variant 'rope_mixed': choose one of nopos, abspos"),
        (dict(pos="nopos", max_global_shift=-1.0), "max_global_shift must be a finite number ≥ 0"),
        (dict(pos="nopos", max_local_shift=-1.0), "max_local_shift must be a finite number ≥ 0"),
        (dict(max_local_shift=(0.1, 0.2)), "max_local_shift must be one number, got"),
        (dict(pos="nopos", max_global_scale=0.5), "max_global_scale must be a finite number ≥ 1"),
        (dict(pos="nopos", frequency_scale=0), "frequency_scale must be finite and > 0, got 0"),
        (dict(attention_logn=1), "attention_logn must be the number of tokens"),
        (dict(pos="nopos", random_range=0.0), "random_range must be finite and > 0"),
    ],
)
def test_values_out_of_range_are_refused_whatever_the_variant(options, message):
    with pytest.raises(ValueError, match=message):
        Tokens(**options)


def test_images_refuse_variants_of_sequences_and_a_local_shift_below_0_on_an_axis():
    with pytest.raises(ValueError, match="unknown variant 'relpos': choose one of nopos, sinpos"):
        Patches(pos="relpos")
    with pytest.raises(ValueError, match=r"max_local_shift must be a finite number ≥ 0, got -0\.2"):
        Patches(max_local_shift=(0.1, -0.2))


def test_options_of_other_variants_are_refused_as_the_user_types_them():
    with pytest.raises(
        ValueError, match=r"--max_global_shift = 6.0 is for cape; rope takes --freq"
    ):
        Tokens(pos="rope", max_global_shift=6.0).refuse_options("--{}".format)
    Tokens(pos="rope", frequency_scale=2.0, attention_logn=50).refuse_options()
    with pytest.raises(ValueError, match="relpos_context = 9 is for relpos, relpos_first"):
        Tokens(pos="sinpos", relpos_context=9).refuse_options()


def test_defaults_and_help_are_the_hosts_and_what_is_taken_the_tables():
    assert Tokens.defaults()["max_global_shift"] == 5.0
    assert SequenceSettings.defaults()["max_global_shift"] == 0.0
    assert {field.metadata["help"] for field in dataclasses.fields(Tokens)} >= {"in tokens"}
    assert not Tokens(pos="cape_rope").takes("max_global_shift")
    assert Patches(pos="cape_rope").takes("max_global_shift")
    assert Tokens(pos="cape_rope").variant is variants.get("cape_rope")
    ours, rest = split_options(Tokens, dict(pos="cape", layers=3, random_range=2.0))
    assert (ours, rest) == (dict(pos="cape", random_range=2.0), dict(layers=3))


# The mark in checkpoints

SETTINGS = dict(max_global_shift=30.0, frequency_scale=30.0, random_range=60.0, base=None)


class Model(nn.Module):
    def __init__(self, pos: str, settings=SETTINGS, **options) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.mark = VariantMark(pos, settings, "encoder_conf {}".format, **options)


@pytest.mark.parametrize("pos", variants.names(1))
def test_a_variant_loads_its_own_checkpoint_silently_and_no_other(pos, tmp_path, caplog):
    torch.save(Model(pos).state_dict(), tmp_path / "model.bin")
    for state in (torch.load(tmp_path / "model.bin"), Model(pos).half().state_dict()):
        assert state["mark._extra_state"].dtype == torch.float32
        Model(pos).load_state_dict(state)
        for other in variants.names(1):
            if other != pos:
                with pytest.raises(ValueError, match=f"trained with encoder_conf pos {pos}, this"):
                    Model(other).load_state_dict(state)
    assert not caplog.text


def test_the_advice_and_the_number_of_a_later_version_are_in_the_message():
    state = Model("rope").state_dict()
    model = Model("cape", advice="start without --init")
    message = "this model has cape: set encoder_conf pos rope, or start without --init$"
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(state)
    state["mark._extra_state"][0] = 999.0
    with pytest.raises(ValueError, match="of no variant that this version knows"):
        model.load_state_dict(state)


def test_other_settings_are_warned_of_and_those_not_taken_are_not_kept(caplog):
    state = Model("cape").state_dict()
    assert Model("cape").mark.settings == dict(max_global_shift=30.0, frequency_scale=30.0)
    kept = dict(zip(("pos", *SLOTS), state["mark._extra_state"].tolist(), strict=True))
    given = {name: value for name, value in kept.items() if value != ABSENT}
    assert given == dict(pos=3.0, max_global_shift=30.0, frequency_scale=30.0, square=16.0)
    other = Model("cape", {**SETTINGS, "max_global_shift": 5.0, "random_range": 1.0})
    other.load_state_dict(state)
    assert "was trained with encoder_conf max_global_shift 30, this model has 5" in caplog.text
    assert len(caplog.records) == 1
    assert Model("cape_rope").mark.settings == dict(frequency_scale=30.0)
    assert repr(Model("sinpos").mark) == "VariantMark('sinpos', {'frequency_scale': 30.0})"


def test_a_setting_added_in_the_middle_takes_no_others_place(caplog):
    older = Model("cape", dict(max_global_shift=5.0, frequency_scale=30.0)).state_dict()
    now = dict(max_global_shift=5.0, max_local_shift=0.5, frequency_scale=30.0)
    Model("cape", now).load_state_dict(older)
    longer = Model("cape", now).state_dict()
    state = longer["mark._extra_state"]
    longer["mark._extra_state"] = torch.cat([state, torch.ones(1)])  # of a later version
    Model("cape", now).load_state_dict(longer)
    assert not caplog.text


@pytest.mark.parametrize(
    ("pos", "numbers", "says"),
    [
        ("cape", [3, 5, 0.5, 1, 30, 1], None),
        ("cape", [3, 5, 0.5, 1, 30], "content_scale 4, this model has 1"),
        ("cape", [3, 5, 0.25, 1, 30, 1], "max_local_shift 0.25, this model has 0.5"),
        ("random", [12, 30, 9, 1], "random_range 9, this model has 7"),
        ("relpos", [4, 99, 1], None),
    ],
)
def test_marks_of_before_there_were_slots_are_read(pos, numbers, says, caplog):
    settings = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.0)
    settings |= dict(frequency_scale=30.0, random_range=7.0, relpos_context=99)
    model = Model(pos, settings, added={"content_scale": (1.0, 4.0)})
    state = {**model.state_dict(), "mark._extra_state": torch.tensor(numbers).float()}
    model.load_state_dict(state)
    assert len(caplog.records) == (says is not None)
    assert says is None or says in caplog.text


def test_what_a_variants_attention_wants_remembered_is_kept_with_it(caplog):
    state = Model("alibi", dict(unit=0.5, max_global_shift=5.0)).state_dict()
    Model("alibi", dict(unit=0.25)).load_state_dict(state)
    assert "encoder_conf unit 0.5, this model has 0.25" in caplog.text
    assert Model("rope", dict(unit=0.5)).mark.settings == {}


def test_a_setting_without_a_slot_is_refused():
    with pytest.raises(ValueError, match="no slot in a mark, append to SLOTS: base"):
        Model("cape", dict(base=100.0))


def test_the_state_survives_averaging_copies_and_pickles(caplog):
    states = [Model("cape", {"max_local_shift": 0.015}).state_dict() for _ in range(3)]
    averaged = {name: sum(state[name] for state in states) / 3 for name in states[0]}
    model = Model("cape", {"max_local_shift": 0.015})
    model.load_state_dict(averaged)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied.load_state_dict(averaged)
    assert not caplog.text
