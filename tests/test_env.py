"""``python -m cape_plugins.env``: what it says of an environment."""

import sys
from importlib import import_module
from importlib.metadata import version

import pytest
import torch

from cape_plugins import env


def test_it_prints_versions_and_that_the_hook_is_on(capsys, monkeypatch):
    monkeypatch.setattr(env, "HOSTS", {})
    env.main()
    ours, python, about_torch, autoload, variants = capsys.readouterr().out.splitlines()
    assert ours == f"cape-plugins {version('cape-plugins')}"
    assert python.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert about_torch.startswith(f"torch {torch.__version__}, GPU: ")
    assert autoload == "loading by name: on"
    assert variants.startswith("variants: nopos, abspos, ")
    assert "; of cape_fire: fire, cape_fire" in variants


@pytest.mark.parametrize("switch", ["CAPE_PLUGINS_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_it_says_what_switched_the_hook_off(capsys, monkeypatch, switch):
    monkeypatch.setattr(env, "HOSTS", {})
    without = [finder for finder in sys.meta_path if not hasattr(finder, "of_cape_plugins")]
    monkeypatch.setattr(sys, "meta_path", without)
    monkeypatch.setenv(switch, "0")
    env.main()
    assert f"{switch}=0" in capsys.readouterr().out


def test_of_a_host_that_does_not_know_our_models_the_reason_is_given(capsys, monkeypatch, tmp_path):
    warns = "import warnings\nwarnings.warn('of its own')\nwarnings.warn('cape_plugins could not')"
    (tmp_path / "warning_host.py").write_text(warns)
    monkeypatch.syspath_prepend(tmp_path)
    hosts = {
        "missing": (["no-such-distribution"], "nowhere", vars),
        "broken": (["torch"], "no_such_module", vars),
        "without": (["torch"], "json", lambda _: ["vit"]),
        "failed": (["torch"], "warning_host", lambda _: ["vit"]),
    }
    monkeypatch.setattr(env, "HOSTS", hosts)
    env.main()
    *_, missing, broken, without, failed = capsys.readouterr().out.splitlines()
    assert "pip install 'cape-plugins[missing]'" in missing
    assert broken.startswith(f"torch {version('torch')}: ")
    assert "'no_such_module'" in broken
    assert without.endswith("import cape_plugins.without")
    assert failed.endswith(": cape_plugins could not")


@pytest.mark.parametrize("host", env.HOSTS)
def test_of_a_host_that_knows_our_models_it_says_whether_they_were_tested_with_it(
    capsys, monkeypatch, host
):
    pytest.importorskip(env.HOSTS[host][1])
    monkeypatch.setattr(env, "HOSTS", {host: env.HOSTS[host]})
    env.main()
    line = capsys.readouterr().out.splitlines()[-1]
    relies = import_module(f"cape_plugins.{host}.relies").RELIES
    assert line == f"{' '.join(relies.installed)}: {relies.state}"

    monkeypatch.setitem(vars(relies), "installed", (relies.installed[0], "999999.1"))
    monkeypatch.setitem(vars(relies), "mismatch", "Block.forward takes (y), in ours it is (x)")
    env.main()
    line = capsys.readouterr().out.splitlines()[-1]
    assert ": newer than tested (" in line
    assert line.endswith("); Block.forward takes (y), in ours it is (x)")
