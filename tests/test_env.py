"""``python -m cape_plugins.env``: what it says of an environment."""

import sys
from importlib import import_module
from importlib.metadata import version

import pytest
import torch

from cape_plugins import (
    Given,
    PositionalAttention,
    Variant,
    autoload,
    env,
    register_variant,
    testing,
)
from cape_support import odd


def test_it_prints_versions_and_that_the_hook_is_on(capsys, monkeypatch):
    monkeypatch.setattr(autoload, "hosts", dict)
    env.main([])
    ours, python, about_torch, hook, variants = capsys.readouterr().out.splitlines()
    assert ours == f"cape-plugins {version('cape-plugins')}"
    assert python.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert about_torch.startswith(f"torch {torch.__version__}, GPU: ")
    assert hook == "loading by name: on"
    assert variants.startswith("variants: nopos, abspos, ")
    assert "; of cape_fire: fire, cape_fire" in variants
    # and what switched the hook off
    without = [finder for finder in sys.meta_path if not hasattr(finder, "of_cape_plugins")]
    monkeypatch.setattr(sys, "meta_path", without)
    for switch in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "CAPE_PLUGINS_AUTOLOAD"):
        monkeypatch.setenv(switch, "0")
        env.main([])
        assert f"{switch}=0" in capsys.readouterr().out


def test_of_a_host_that_does_not_know_our_models_the_reason_is_given(capsys, monkeypatch, tmp_path):
    warns = "import warnings\nwarnings.warn('of its own')\nwarnings.warn('other could not')"
    (tmp_path / "warning_host.py").write_text(warns)
    monkeypatch.syspath_prepend(tmp_path)
    hosts = {
        "cape_plugins.missing": ["nowhere.models"],
        "broken": ["torch.no_such_module"],
        "without": ["json"],
        "other": ["warning_host"],
    }
    monkeypatch.setattr(autoload, "hosts", lambda: hosts)
    env.main([])
    *_, missing, broken, without, failed = capsys.readouterr().out.splitlines()
    assert "pip install 'cape-plugins[missing]'" in missing
    assert broken.startswith(f"torch {version('torch')}: ")
    assert "'torch.no_such_module'" in broken
    assert without.endswith("import without")
    assert failed.endswith(": other could not")


@pytest.mark.parametrize("package", [*autoload.hosts()])
def test_of_a_host_that_knows_our_models_it_says_whether_they_were_tested_with_it(
    capsys, monkeypatch, package
):
    module, *_ = autoload.hosts()[package]
    pytest.importorskip(module)
    monkeypatch.setattr(autoload, "hosts", lambda: {package: [module]})
    env.main([])
    line = capsys.readouterr().out.splitlines()[-1]
    relies = import_module(package).RELIES
    assert line == f"{' '.join(relies.installed)}: {relies.state}"

    monkeypatch.setitem(vars(relies), "installed", (relies.installed[0], "999999.1"))
    monkeypatch.setitem(vars(relies), "mismatch", "Block.forward takes (y), in ours it is (x)")
    env.main([])
    line = capsys.readouterr().out.splitlines()[-1]
    assert ": newer than tested (" in line
    assert line.endswith("); Block.forward takes (y), in ours it is (x)")


def by_the_last(self, queries, keys, mask, dtype):
    """Embeds a key by the last token's position, which no cache knows."""
    last = keys.nan_to_num(0.0).amax(dim=1, keepdim=True)
    return Given(queries.nan_to_num(0.0) - last, keys.nan_to_num(0.0) - last, mask)


def test_a_variant_is_checked_by_its_name(own_table, capsys, monkeypatch):
    """A line for each check, and exit status 1 where one fails."""
    checks = testing.check_padding, testing.check_cache
    monkeypatch.setattr(testing, "CHECKS", checks)
    monkeypatch.setattr(autoload, "hosts", dict)
    methods = dict(prepare=by_the_last, embed=lambda self, x, rows: x * (1 + rows[:, None, :, :1]))
    variant = Variant(attends=odd(PositionalAttention, **methods), axes=(1,))
    register_variant("sees_future", variant)
    for pos, status in (("rope", 0), ("sees_future", 1), ("ropee", 1)):
        with pytest.raises(SystemExit) as ended:
            env.main(["--check", pos])
        assert ended.value.code == status
    lines = capsys.readouterr().out.splitlines()
    heads = [line.partition(",")[0] for line in lines if not line.startswith("  ")]
    assert heads[:3] == ["rope for sequences", "rope for images", "sees_future for sequences"]
    assert "did you mean rope?" in lines[-1]
    words = [line.split() for line in lines if line.startswith("  ")]
    assert ["passes" in one for one in words] == [True] * 4 + [True, False]
    assert "FAILS:" in words[-1]
