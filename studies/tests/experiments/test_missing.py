"""What is not installed is told before any work, with the extra that brings it."""

import importlib.util

import pytest

from cape_studies.experiments import hosts, study
from cape_studies.experiments.hosts import Machine
from cape_studies.experiments.run import main


@pytest.fixture
def without(monkeypatch):
    """Make a module one that is not installed."""
    known = importlib.util.find_spec

    def call(name: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda wanted: None if wanted == name else known(wanted)
        )

    return call


@pytest.mark.parametrize(
    ("name", "module", "line"),
    [
        ("digit_images", "timm", "timm is not installed: pip install 'cape-studies[timm]'"),
        ("digit_images", "sklearn", "sklearn, which make_digit_images.py imports, is not"),
        ("digit_images", "lightning", "lightning, which train_lightning.py imports, is not"),
        ("demo_fairseq", "num2words", "num2words, which make_numbers.py imports, is not"),
        # imported by prepare_wavs.py beside it
        ("digits", "soundfile", "soundfile, which make_digits.py imports, is not installed: pip"),
    ],
)
def test_a_module_that_is_missing_is_named_with_the_extra_that_brings_it(
    name, module, line, without, tmp_path, capsys
):
    without(module)
    (one,) = study.load(study.find(name))
    (found,) = hosts.problems([one, one], Machine())
    assert found.startswith(line)
    assert found.endswith(f"pip install 'cape-studies[{one.host}]'")
    if one.needs:
        return
    with pytest.raises(SystemExit) as stop:
        main([name, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert found in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_a_script_may_do_without_is_not_asked_for(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import json, numpy.random\nfrom pathlib import Path\nimport beside\n"
        "try:\n    import wandb\nexcept ImportError:\n    wandb = None\n"
        "def late():\n    import pandas\n"
    )
    (tmp_path / "beside.py").write_text("import mine, yaml\n")
    assert hosts.read_script(tmp_path / "mine.py")[1] == {"json", "numpy", "pathlib", "yaml"}
