"""The mark names the variant among weights: what tools do to them must not change what it says."""

import copy
import itertools
import logging
import pickle

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cape_plugins.mark import VariantMark, compare_first, variant_of
from cape_support import OURS, SEQUENCES, build

TRAINING = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4)


class Model(nn.Module):
    """A layer, and positions in the middle of it."""

    def __init__(self, pos: str = "cape", axes: int = 1, **options) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 12)
        self.positions = build(pos, axes, spell="--{}".format, **options)
        self.attention = self.positions.attentions[0]

    def forward(self, content: torch.Tensor) -> torch.Tensor:
        where = torch.arange(content.shape[1])[None].float()
        return self.layer(self.positions(content, where)[0])


def marked(state: dict) -> dict:
    """The entries of the mark, numbers as lists."""
    return {key: value.tolist() for key, value in state.items() if ".mark." in key}


@pytest.fixture(autouse=True)
def said(caplog):
    caplog.set_level(logging.WARNING)
    return caplog


# What it says


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_a_variant_loads_its_own_checkpoint_silently_and_no_other(pos, axes, tmp_path, said):
    torch.save(Model(pos, axes).state_dict(), tmp_path / "model.bin")
    state = torch.load(tmp_path / "model.bin", weights_only=True)
    assert variant_of(state) == pos
    assert state[f"positions.mark.variant_{pos}"].numel() == 0
    Model(pos, axes).load_state_dict(state)
    assert not said.text
    others = [each for each in OURS if each[1] == axes and each[0] != pos]
    for other, _ in others:
        with pytest.raises(ValueError, match=rf"--pos {pos}\b.* {other}\b"):
            Model(other, axes).load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    ("pos", "name", "value"),
    [
        ("cape", "frequency_scale", 30.0),
        ("cape", "base", 100.0),
        ("cape", "mean_normalize", False),
        ("rope", "frequency_scale", 30.0),
        ("abspos", "abspos_context", 50.5),  # of as many rows
        ("alibi", "alibi_unit", 0.5),
        ("random", "random_range", 3.0),
        ("random", "random_range", (0.5, 9.0)),
        ("random", "spread", False),
    ],
)
def test_another_value_of_what_changes_evaluation_is_an_error(pos, name, value):
    state = Model(pos, **{name: value}).state_dict()
    with pytest.raises(ValueError, match=f"--{name} "):
        Model(pos).load_state_dict(state)


@pytest.mark.parametrize("name", TRAINING)
def test_another_value_of_what_changes_training_alone_is_a_warning_and_not_kept(name, said):
    state = Model(**{name: 3.5}).state_dict()
    model = Model()
    model.load_state_dict(state)
    assert f"--{name} 3.5" in said.text
    assert len(said.records) == 1
    assert marked(model.state_dict()) == marked(Model().state_dict())


def mark(training_only=(), **settings):
    return VariantMark("demo", settings, training_only, "--{}".format)


@pytest.mark.parametrize(("trained", "value"), [("normal", "v1.5"), ("v1.5", 2.5), (2.5, "normal")])
def test_a_word_is_as_a_number_an_error_or_where_training_alone_has_it_a_warning(
    trained, value, said
):
    state = mark(kind=trained).state_dict()
    with pytest.raises(ValueError, match="--kind"):
        mark(kind=value).load_state_dict(state)
    model = mark(["kind"], kind=value)
    model.load_state_dict(state)
    (line,) = said.messages
    assert "--kind" in line
    assert model.state_dict().keys() == mark(kind=value).state_dict().keys()
    for of_training in ([], ["kind"]):
        mark(of_training, kind=trained).load_state_dict(state)
    assert said.messages == [line]


def test_what_a_host_wants_remembered_is_compared_too():
    state = Model(remembers={"frame_shift": 0.01, "unknown": None}).state_dict()
    assert "positions.mark.unknown" not in state
    Model(remembers={"frame_shift": numpy.float32(0.01)}).load_state_dict(state)
    with pytest.raises(ValueError, match="--frame_shift"):
        Model(remembers={"frame_shift": 0.02}).load_state_dict(state)


def test_a_checkpoint_may_have_no_mark_fewer_settings_or_more():
    state = Model().state_dict()
    unmarked = {name: each for name, each in state.items() if ".mark." not in name}
    assert variant_of(unmarked) is None
    assert not Model().load_state_dict(unmarked).missing_keys
    del state["positions.mark.max_global_shift"]
    Model().load_state_dict(state)
    Model().load_state_dict({**state, "positions.mark.of_later_version": torch.ones(())})


def test_parts_of_a_checkpoint_load_and_are_compared_as_far_as_they_go():
    state = Model("alibi", alibi_unit=0.5).state_dict()
    marks = [name for name in state if ".mark." in name]
    assert len(marks) > 1
    for part in (["layer.weight"], *([name] for name in marks)):
        some = {name: state[name] for name in part}
        Model("alibi", alibi_unit=0.5).load_state_dict(some, strict=False)
    with pytest.raises(ValueError, match="--pos alibi"):
        Model("cape").load_state_dict({name: state[name] for name in marks}, strict=False)


def test_a_model_that_compares_first_is_unchanged_by_a_checkpoint_that_it_refuses():
    """Wherever its positions are, and where it is a part of another model."""
    other = {name: each + 1 for name, each in Model("sinpos").state_dict().items()}
    for whole, prefix in ((nn.Identity(), ""), (nn.ModuleDict({"part": Model()}), "part.")):
        part = whole.part if prefix else Model()
        model = whole if prefix else part
        compare_first(part)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match="--pos sinpos"):
            model.load_state_dict({prefix + name: each for name, each in other.items()})
        assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_warning_is_given_once_for_both_halves_of_a_model_and_for_its_copies(said):
    state = nn.ModuleList([Model(max_global_shift=3.5), Model(max_global_shift=3.5)]).state_dict()
    model = nn.ModuleList([Model(), Model()])
    compare_first(model)
    model.load_state_dict(state)
    copy.deepcopy(model).load_state_dict(state)  # the average of a model's weights is a copy
    assert len(said.records) == 1
    with pytest.raises(ValueError, match="--pos rope"):
        pickle.loads(pickle.dumps(model))[0].load_state_dict(Model("rope").state_dict())


def test_a_host_says_what_to_build_where_nobody_sets_the_option():
    model = Model("rope")
    model.positions.mark.remedy = lambda option, trained: f"take {trained}!" * (option == "pos")
    with pytest.raises(ValueError, match="take cape!"):
        model.load_state_dict(Model("cape").state_dict())
    with pytest.raises(ValueError, match="set --frequency_scale 2"):
        model.load_state_dict(Model("rope", frequency_scale=2.0).state_dict())
    with pytest.raises(ValueError, match="or start anew"):
        Model("alibi", advice="start anew").load_state_dict(Model("rope").state_dict())


def test_weights_that_somebody_put_together_of_two_variants_are_refused():
    for first, second in (("cape", "rope"), ("rope", "cape")):
        states = [Model(pos).state_dict() for pos in (first, second)]
        for pos in ("cape", "rope"):
            with pytest.raises(ValueError, match="--pos"):
                Model(pos).load_state_dict({**states[0], **states[1]})


# What arithmetic on weights does to it


@pytest.mark.parametrize(
    ("decay", "steps", "dtype"),
    [
        (0.9999, 30_000, torch.float32),  # rounding adds up over some 1 / (1 - decay) updates
        (0.9, 500, torch.bfloat16),
        (0.999, 500, torch.float16),
    ],
)
def test_a_moving_average_of_one_training_is_of_that_training(decay, steps, dtype):
    marks = [build(pos, remembers={"frame_shift": 0.0125}).mark for pos in SEQUENCES]
    states = [mark.state_dict() for mark in marks]
    every = torch.cat([each.flatten() for state in states for each in state.values()]).to(dtype)
    average = every.clone()
    for _ in range(steps):  # all numbers at once
        average.mul_(decay).add_(every, alpha=1 - decay)
    assert dtype != torch.float32 or not torch.equal(average, every)
    for mark, state in zip(marks, states, strict=True):
        sizes = [each.numel() for each in state.values()]
        taken, average = average.split([sum(sizes), len(average) - sum(sizes)])
        parts = zip(state, taken.split(sizes), state.values(), strict=True)
        mark.load_state_dict({name: part.view(each.shape) for name, part, each in parts})


def test_a_soup_of_one_training_is_of_that_training_and_of_two_of_neither(said):
    for pos, weights in itertools.product(SEQUENCES, ([1 / 3] * 3, [0.1] * 10, [1.3, -0.3])):
        state = Model(pos).state_dict()
        soup = {name: sum(state[name] * weight for weight in weights) for name in state}
        Model(pos).load_state_dict(soup)
    assert not said.text
    states = [Model("rope", frequency_scale=scale).state_dict() for scale in (1.0, 30.0)]
    mean = {name: (states[0][name] + states[1][name]) / 2 for name in states[0]}
    for scale in (1.0, 30.0):
        with pytest.raises(ValueError, match="--frequency_scale"):
            Model("rope", frequency_scale=scale).load_state_dict(mean)


# What tools do to it


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casts_of_a_model_leave_it_alone_and_those_of_a_checkpoint_load(dtype, said):
    model = Model(frequency_scale=0.3)
    expected = marked(model.state_dict())
    assert marked(model.to(dtype).state_dict()) == expected
    cast = {name: each.to(dtype) for name, each in model.state_dict().items()}
    Model(frequency_scale=0.3).load_state_dict(cast)
    assert not said.text


def test_training_and_averaging_a_model_move_nothing():
    model = Model()
    expected = marked(model.state_dict())
    assert not any(".mark." in name for name, _ in model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.5)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9995), use_buffers=True)
    for _ in range(3):
        model(torch.ones(1, 6, 12)).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
    assert marked(model.state_dict()) == marked(averaged.module.state_dict()) == expected


def test_a_model_from_the_meta_device_has_it_as_if_built_here():
    source = Model()
    expected = marked(source.state_dict())
    for state in (source.state_dict(), dict(source.layer.state_dict(prefix="layer."))):
        with torch.device("meta"):
            emptied, assigned = Model(), Model()
        emptied.to_empty(device="cpu").load_state_dict(state)
        assigned.load_state_dict(state, assign=True)
        for model in (emptied, assigned.to("cpu")):  # .to refuses whatever is left on meta
            assert marked(model.state_dict()) == expected
            torch.testing.assert_close(model.layer.weight, source.layer.weight)
    with torch.device("meta"), pytest.raises(ValueError, match="--pos cape"):
        Model("rope").load_state_dict(source.state_dict(), assign=True)
    # a checkpoint there has shapes alone, and no number to compare
    state = {name: each.to("meta") for name, each in mark(width=2.0).state_dict().items()}
    mark(width=3.0).load_state_dict(state)


def test_safetensors_and_exported_models_keep_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_model(Model("rope"), str(tmp_path / "model.safetensors"))
    safetensors.load_model(Model("rope"), str(tmp_path / "model.safetensors"))
    with pytest.raises(ValueError, match="--pos rope"):
        safetensors.load_model(Model("cape_rope"), str(tmp_path / "model.safetensors"))
    exported = torch.export.export(Model().eval(), (torch.zeros(1, 6, 12),))
    torch.export.save(exported, tmp_path / "model.pt2")
    state = torch.export.load(tmp_path / "model.pt2").state_dict
    assert variant_of(state) == "cape"
    Model().load_state_dict(state)


@pytest.fixture
def one_process():
    """A process group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_checkpoints_keep_it_and_no_other_variant_takes_them(
    one_process, tmp_path, said
):
    dcp.save(get_model_state_dict(Model()), checkpoint_id=tmp_path)

    def load(model: Model) -> Model:
        state = get_model_state_dict(model)
        dcp.load(state, checkpoint_id=tmp_path)  # into the model's own tensors
        set_model_state_dict(model, state)
        return model

    load(Model())
    assert not said.text
    with pytest.raises(BaseException, match="variant_sinpos"):  # DCP's own error
        load(Model("sinpos"))
    with pytest.raises(ValueError, match="--frequency_scale"):
        load(Model(frequency_scale=2.0))
    other = load(Model(max_global_shift=7.0))
    assert "--max_global_shift 5" in said.text
    assert other.state_dict()["positions.mark.max_global_shift"] == 7.0


def test_sharded_and_replicated_models_keep_it(one_process):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch.distributed.fsdp.fully_shard is of torch 2.6")
    model = Model("relpos")
    expected = marked(model.state_dict())
    fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert marked(full) == expected
    Model("relpos").load_state_dict(full)
    replicated = DistributedDataParallel(Model())  # broadcasts buffers in each forward
    for _ in range(2):
        replicated(torch.ones(1, 6, 12)).sum().backward()
    assert marked(replicated.module.state_dict()) == marked(Model().state_dict())
