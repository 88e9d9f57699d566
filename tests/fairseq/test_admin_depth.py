"""The script that shows what ADMIN is for."""

import importlib.util
import math
from pathlib import Path

import pytest

pytest.importorskip("fairseq")
pytest.importorskip("tabulate")

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

SCRIPT = Path(__file__).resolve().parents[2] / "integrations" / "fairseq" / "admin_depth.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("admin_depth", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(script, name):
    given = script.parse(["--data", "prepared", "--out", "out"])
    run = script.Run(name, script.NAMES[name], Path("out"))
    words = script.command(run, Path("data-bin"), given)[1:]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    config = convert_namespace_to_omegaconf(args)
    return OmegaConf.to_container(config.model, enum_to_str=True)


def test_the_trainings_differ_in_admin_alone(script):
    plain, admin = (settings(script, name) for name in script.NAMES)
    assert (plain.pop("admin_init"), admin.pop("admin_init")) == (False, True)
    assert plain == admin
    assert [plain[f"{side}_layers"] for side in ("encoder", "decoder")] == [18, 18]
    assert plain["encoder_embed_dim"] == 64
    assert not plain["encoder_normalize_before"]


def test_losses_are_read_from_fairseqs_log(script, tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "2026-11-21 22:19:41 | INFO | train_inner | epoch 001:    700 / 931 loss=7.92, "
        "nll_loss=7.118, ppl=138.92, wps=1047.7, ups=2.19, wpb=479, bsz=29.5, num_updates=700, "
        "lr=0.000755929, gnorm=0.706, train_wall=11, wall=449\n"
        "2026-11-21 22:19:51 | INFO | train | epoch 001 | loss 8.678 | nll_loss 7.967 | "
        "num_updates 700 | lr 0.000755929\n"
    )
    assert script.read(log) == {700: pytest.approx(7.118 * math.log(2))}


def test_data_that_was_not_prepared_is_named(script, tmp_path):
    with pytest.raises(SystemExit, match="holds no data-bin: make it with"):
        script.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
