"""``python -m cape_plugins.env``: what it says of an environment."""

import sys
from importlib.metadata import version

import pytest
import torch

from cape_plugins import env


def test_it_prints_versions_and_that_the_hook_is_on(capsys, monkeypatch):
    monkeypatch.setattr(env, "_HOSTS", {})
    env.main()
    ours, python, about_torch, autoload = capsys.readouterr().out.splitlines()
    assert ours == f"cape-plugins {version('cape-plugins')}"
    assert python.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert about_torch.startswith(f"torch {torch.__version__}, GPU: ")
    assert autoload == "loading by name: on"


@pytest.mark.parametrize("switch", ["CAPE_PLUGINS_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_it_says_what_switched_the_hook_off(capsys, monkeypatch, switch):
    monkeypatch.setattr(env, "_HOSTS", {})
    without = [finder for finder in sys.meta_path if not hasattr(finder, "of_cape_plugins")]
    monkeypatch.setattr(sys, "meta_path", without)
    monkeypatch.setenv(switch, "0")
    env.main()
    assert f"loading by name: off ({switch}=0)" in capsys.readouterr().out


def test_a_host_knows_our_models_or_the_reason_is_given(capsys, monkeypatch):
    pytest.importorskip("timm")
    name = "vit_tiny_patch16_cape_224"
    hosts = {
        "timm": (("timm",), "timm.models", name),
        "missing": (("no-such-distribution",), "nowhere", "model"),
        "broken": (("torch",), "no_such_module", "model"),
    }
    monkeypatch.setattr(env, "_HOSTS", hosts)
    env.main()
    *_, timm, missing, broken = capsys.readouterr().out.splitlines()
    assert timm == f"timm {version('timm')}: knows our models ({name} …)"
    todo = "pip install 'cape-plugins[missing]', or '.[missing]' in a checkout"
    assert missing == f"missing: not installed: {todo}"
    assert broken.endswith(
        "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"
    )


def test_a_host_without_our_models_gets_the_line_that_registers_them(capsys, monkeypatch):
    pytest.importorskip("timm")
    monkeypatch.setattr(env, "_HOSTS", {"timm": (("timm",), "timm.models", "no_such_model")})
    env.main()
    assert (
        capsys.readouterr().out.splitlines()[-1].endswith("register with: import cape_plugins.timm")
    )
