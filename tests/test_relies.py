"""What our models rely on in a host: its table, and what happens where something differs."""

import inspect
import pkgutil
import re
import sys
from importlib import import_module
from types import ModuleType

import pytest

from cape_plugins.relies import Relies, find, parameters
from cape_support import ROOT

MODULES = {
    "timm": "timm",
    "fairseq": "fairseq",
    "espnet": "espnet2",
    "transformers": "transformers",
}
# methods that functions of ours replace, not classes
REPLACED = {
    "espnet2.tasks.abs_task:AbsTask.build_task_iter_factory",
    "espnet2.tasks.abs_task:AbsTask.main_worker",
}


@pytest.fixture(params=MODULES)
def host(request) -> str:
    pytest.importorskip(MODULES[request.param])
    return request.param


@pytest.fixture
def relies(host, monkeypatch) -> Relies:
    """A host's table, compared anew; afterwards as before."""
    table = import_module(f"cape_plugins.{host}.relies").RELIES
    before = dict(vars(table))
    vars(table).pop("mismatch", None)
    yield table
    vars(table).clear()
    vars(table).update(before)


def test_todays_hosts_have_all_that_the_tables_name(relies):
    assert relies.mismatch == ""
    relies.check()


def overridden(host: str) -> dict[object, list[object]]:
    """Each function of a host that methods of our classes override → the methods."""
    package, found = import_module(f"cape_plugins.{host}"), {}
    names = [one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for module in [import_module(name) for name in names if not name.endswith("__main__")]:
        for kind in [one for one in vars(module).values() if isinstance(one, type)]:
            theirs: dict[str, object] = {}
            for base in reversed(kind.__mro__):
                if base.__module__.split(".")[0] == MODULES[host]:
                    theirs |= vars(base)
                elif base.__module__.startswith("cape_plugins."):
                    for name in vars(base).keys() & theirs.keys():
                        special = name.startswith("__") and name != "__post_init__"
                        # where ours is torch's own, as what fairseq 0.12.2 adds is left out
                        plain = getattr(getattr(base, name), "__module__", "").startswith("torch.")
                        if inspect.isroutine(theirs[name]) and not (special or plain):
                            function = getattr(theirs[name], "__func__", theirs[name])
                            found.setdefault(function, []).append(getattr(base, name))
    return found


def test_a_table_names_each_method_that_our_classes_override_and_no_other(host, relies):
    named = {path: find(path) for path in relies.overrides.keys() - REPLACED}
    named = {getattr(one, "__func__", one): path for path, one in named.items()}
    ours = overridden(host)
    assert not [ours[one] for one in ours.keys() - named.keys()]
    assert not [named[one] for one in named.keys() - ours.keys()]
    # parameters are left uncompared only where ours hands all of them on
    for function, path in named.items():
        if relies.overrides[path] == "*":
            assert all(parameters(one)[-1].startswith("**") for one in ours[function]), path


# host → a function of the host, what a release might make of it, and what then builds a model
DOCTORED = {
    "timm": ("timm.layers:Attention.forward", "self, x, mask=None, is_causal=False"),
    "fairseq": ("fairseq.modules:MultiheadAttention.forward", "self, query, key, value"),
    "espnet": (
        "espnet2.asr.encoder.conformer_encoder:EncoderLayer.forward",
        "self, x_input, mask, cache=None, streaming=False",
    ),
    "transformers": (  # what 5.24 did, by another name
        "transformers.models.llama.modeling_llama:LlamaAttention.forward",
        "self, hidden_states, position_embeddings=None, attention_mask=None, past=None, **kwargs",
    ),
}


# host → what builds a model, in each way that there is
BUILDS = {
    "timm": """
from timm import create_model
names = "vit_tiny_patch4_cape_32", "naflexvit_tiny_patch16_cape_gap"
names = (*names, "vit_small_patch16_rope_cape_224")
ways = [lambda name=name: create_model(name, depth=1) for name in names]""",
    "fairseq": """
import fairseq_support
data = fairseq_support.preprocess(tmp_path, fairseq_support.PAIRS)
config, task = fairseq_support.configure(data)
ways = [lambda: task.build_model(config.model)]""",
    "espnet": """
from espnet2.tasks.asr import decoder_choices, encoder_choices
sizes = dict(output_size=8, attention_heads=2, linear_units=8, num_blocks=1)
kinds = [encoder_choices.classes[name] for name in ("cape_transformer", "cape_conformer")]
ways = [lambda one=one: one(8, **sizes) for one in kinds]
ways += [lambda: decoder_choices.classes["cape_transformer"](9, 8)]""",
    "transformers": """
from transformers import AutoConfig, AutoModel
sizes = dict(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
config = AutoConfig.for_model("cape_llama", vocab_size=9, **sizes)
ways = [lambda: AutoModel.from_config(config)]""",
}


def test_a_release_that_changed_what_ours_overrides_is_refused_when_a_model_is_built(
    host, relies, monkeypatch, tmp_path
):
    path, signature = DOCTORED[host]
    owner, _, name = path.rpartition(".")
    scope: dict[str, object] = {"tmp_path": tmp_path}
    exec(f"{BUILDS[host]}\ndef {name}({signature}): ...", scope)
    ways = scope["ways"]
    for way in ways:
        way()
    monkeypatch.setattr(find(owner), name, scope[name])
    monkeypatch.setitem(vars(relies), "installed", (relies.installed[0], "999999.1"))
    vars(relies).pop("mismatch", None)
    for way in ways:
        with pytest.raises(ImportError) as error:
            way()
        message = str(error.value)
        assert f"{relies.installed[0]} 999999.1" in message
        assert path in message
        assert f"pip install 'cape-plugins[{host}]'" in message
        assert all(version in message for of in relies.tested.values() for version in of)
        assert "\n" not in message


# the comparison


def module(monkeypatch, source: str) -> None:
    made = ModuleType("theirs")
    exec(source, vars(made))
    monkeypatch.setitem(sys.modules, "theirs", made)


THEIRS = """
import functools
class Base:
    def __init__(self, size, **others): self.project = size
class Layer(Base):
    kind = "layer"
    def __init__(self, size): super().__init__(size); self.gate = None
    def forward(self, x, mask=None, *, cache=None, **named):
        return self.attention(x, positions=[self.inner(y, rope=mask, scale=1) for y in x], key=1)
    @classmethod
    def build(cls, settings): ...
    @functools.wraps(forward)
    def decorated(self, *args, **named): ...
"""
FORWARD = "x mask cache **named"


@pytest.mark.parametrize(
    ("overrides", "uses", "named"),
    [
        ({"Layer.forward": FORWARD, "Layer.build": "settings", "Layer.decorated": FORWARD}, {}, ""),
        ({"Layer.forward": "x|y mask past|cache **named"}, {}, ""),
        ({"Layer.forward": "*"}, {}, ""),
        ({"Layer.forward": "x mask **named"}, {}, "Layer.forward takes (x, mask, cache, **named)"),
        ({"Layer.forward": f"{FORWARD} more"}, {}, "Layer.forward"),
        ({"Layer.forward": "mask x cache **named"}, {}, "Layer.forward"),
        ({"Layer.forward": "x mask cache named"}, {}, "Layer.forward"),
        ({"Layer.gone": "*"}, {}, "gone"),
        ({"Layer.build": ""}, {}, "Layer.build takes (settings)"),
        ({"Layer.build": "settings_of"}, {}, "Layer.build takes (settings)"),
        ({}, {"Layer": "kind gate project size forward", "Base": "project"}, ""),
        ({}, {"Layer.forward": "attention positions inner rope scale key mask cache"}, ""),
        ({}, {"Layer.decorated": "rope"}, ""),
        ({}, {"Layer": "absent|gate"}, ""),
        ({}, {"Base": "project gate"}, "Base has no gate"),
        ({}, {"Layer.forward": "absent|gone"}, "Layer.forward has no absent|gone"),
        ({}, {"absent.Layer": ""}, "absent"),
        ({}, {"absent:Layer": ""}, "absent"),
    ],
)
def test_a_table_is_compared_name_by_name(monkeypatch, overrides, uses, named):
    module(monkeypatch, THEIRS)
    tables = [
        {name if ":" in name else f"theirs:{name}": one for name, one in of.items()}
        for of in (overrides, uses)
    ]
    relies = Relies(host="h", tested={"torch": ("1",)}, overrides=tables[0], uses=tables[1])
    assert named in relies.mismatch
    assert bool(named) == bool(relies.mismatch)
    if named:
        with pytest.raises(ImportError, match=re.escape(named)):
            relies.check()


@pytest.mark.parametrize(
    ("installed", "state"),
    [
        ("5.24.0", "tested"),
        ("5.9.1", "tested"),
        ("5.24.1", "newer than tested (5.9.1, 5.24.0)"),
        ("5.100.0", "newer than tested (5.9.1, 5.24.0)"),
        ("5.10.0", "not tested (5.9.1, 5.24.0)"),
        ("4.99", "not tested (5.9.1, 5.24.0)"),
    ],
)
def test_a_version_is_tested_newer_or_neither(monkeypatch, installed, state):
    relies = Relies(host="h", tested={"d": ("5.9.1", "5.24.0")}, overrides={}, uses={})
    monkeypatch.setattr("cape_plugins.relies.version", lambda _: f"{installed}+cu130")
    assert relies.installed == ("d", installed)
    assert relies.state == state


# of these hosts each release may change what ours overrides; fairseq 0.12.2 is its last


def test_extras_take_what_was_tested_and_end_before_the_next_release(relies):
    """Each of a host may change what ours overrides."""
    from packaging.requirements import Requirement

    text = (ROOT / "pyproject.toml").read_text()
    pins = "".join(path.read_text() for path in (ROOT / "constraints").glob("*.txt"))
    for distribution, tested in relies.tested.items():
        found = re.findall(rf'"({distribution}[=>].*?)(?: ?;.*)?"', text)
        bounds = [Requirement(one).specifier for one in found]
        assert all(any(version in one for one in bounds) for version in tested)
        assert not any("999999" in one for one in bounds)
        pinned = {*re.findall(rf"^{distribution}==(.*)$", pins, re.MULTILINE)}
        assert pinned
        assert pinned <= {*tested}
