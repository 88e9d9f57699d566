"""What studies of a user's data leave open is set by the data, and what the user sets stays."""

import shutil
from pathlib import Path

import pytest

from cape_studies.ask.settings import settle
from cape_studies.experiments import plan, study
from cape_studies.experiments.hosts import Machine


def settled(name, folder, *changes, machine=None, quick=False):
    (one,) = study.load(study.find(name), changes, quick)
    data, machine, out = {one.answer.data: folder}, machine or Machine(), folder.parent / "out"
    settle(one, data, machine, out)
    setting, _ = plan.prepare(one, out, machine, data, out / name)
    runs = [plan.Run(setting, variant, seed) for variant in one.run for seed in one.seeds]
    return one, [" ".join(run.train_command) for run in runs], runs


def test_images_set_their_side_patches_model_and_steps(classes):
    one, commands, _ = settled("my_images", classes)
    assert "--img-size 16 " in commands[0]
    assert "patch_size=2 embed_dim=64 depth=4 num_heads=2" in commands[0]
    assert "--steps 37 " in commands[0]  # 24 images 100 times, in batches of 64
    assert one.evaluations["size"].options["resolutions"] == [12, 16, 24, 32]
    assert one.report.trained_on == ["16"]
    assert one.answer.chance == pytest.approx(100 / 3 + 300 * (2 / 9 / 6) ** 0.5)  # of six images
    assert "3 classes, 24 images to train on and 6 to test" in one.answer.found
    assert len(commands) == 7 * 3


def test_what_a_user_sets_stays(classes):
    change = ["options.img-size=32", "options.epochs=4", "options.model-kwargs.depth=2"]
    change += ["run=[rope,cape_rope]", "seeds=[5]"]
    one, (command, _), _ = settled("my_images", classes, *change)
    assert "patch_size=4 embed_dim=64 depth=2" in command
    assert "--steps 1 " in command
    assert one.evaluations["size"].options["resolutions"] == [24, 32, 48, 64]
    assert one.report.baseline == "rope"


def test_a_quick_run_of_images_is_short(classes):
    _, commands, _ = settled("my_images", classes, quick=True)
    assert len(commands) == 7
    assert "--steps 20 " in commands[0]


def test_train_py_of_timm_trains_where_it_is_given(classes):
    machine = Machine(timm_scripts=Path("scripts"))
    _, commands, runs = settled("my_images", classes, machine=machine)
    gap = commands[3 * [*runs[0].study.variants].index("rope_gap")]
    assert "scripts/train.py" in gap
    assert "--epochs 100 " in gap
    assert "--num-classes 3 " in gap
    assert "--gp avg" in gap
    assert "global_pool" not in gap
    assert runs[0].checkpoint == "last.pth.tar"


def test_sentences_set_their_tests_and_updates(text):
    one, commands, _ = settled("my_sentences", text, "+prepare.prepared.options.source=en")
    assert one.prepare["prepared"].options["source"] == "en"
    assert one.evaluations["length"].options["gen-subset"] == "1-18,19-19,20-20,21-21"
    assert one.report.trained_on == ["1-18"]
    assert "--max-update" in commands[0]


def test_letters_in_two_forms_are_told_where_the_data_are(wavs):
    for name, said in (("u01", "caf\u00e9"), ("u02", "cafe\u0301")):
        (wavs / f"{name}.txt").write_text(said, "utf-8")
    one, _, _ = settled("my_recordings", wavs)
    assert "1 letters are in Unicode's composed form (NFC) and 1 are not" in one.answer.found


def test_recordings_set_their_rate_tokens_and_shifts(wavs):
    one, commands, _ = settled("my_recordings", wavs)
    assert "--frontend_conf fs=8000 --frontend_conf n_fft=256" in commands[0]
    assert "--frontend_conf hop_length=80 --frontend_conf n_mels=40" in commands[0]
    assert "--token_type word" in commands[0]
    assert "max_global_shift=1.7" in "".join(commands)  # half of the longest, 3.45 s
    tests = one.evaluations["duration"].options["data"]
    assert [test.split("=")[0] for test in tests][:2] == ["up to 2.9 s", "2.9–3.0 s"]
    assert one.report.trained_on == ["up to 2.9 s"]


def test_results_among_the_data_are_refused(classes):
    (one,) = study.load(study.find("my_images"))
    with pytest.raises(ValueError, match="lies in the data"):
        settle(one, {"images": classes}, Machine(), classes / "out")


def test_a_backbone_is_fine_tuned_as_it_is_and_as_its_twin(classes):
    name = "vit_tiny_patch16_dinov3_qkvb"
    one, commands, runs = settled("my_backbone", classes, f"options.model={name}", "seeds=[0]")
    of = dict(zip((run.variant for run in runs), commands, strict=True))
    assert list(of) == ["stock", "augmented", "cape", "moved"]
    assert all("--pretrained " in command for command in commands)
    assert f"--model {name} " in of["stock"]
    assert f"--model {name}_cape " in of["cape"]
    assert "rope_shift_coords=0.5" in of["augmented"]
    assert "--train-split anywhere" in of["moved"]
    assert one.answer.floor == "stock"
    assert one.evaluations["size"].options["resolutions"] == [192, 256, 384, 512]


def test_a_backbone_without_a_twin_is_refused(classes):
    with pytest.raises(ValueError, match="has no _cape twin"):
        settled("my_backbone", classes, "options.model=resnet18")


@pytest.mark.parametrize(
    ("module", "anew"), [("answer", False), ("images", True), ("held_out", True)]
)
def test_what_is_prepared_depends_on_the_code_that_prepares_it(
    classes, tmp_path, monkeypatch, module, anew
):
    monkeypatch.setattr(plan, "ASK", shutil.copytree(plan.ASK, tmp_path / "ask"))
    keys = set()
    for text in ("# one\n", "# another\n"):
        (tmp_path / "ask" / f"{module}.py").write_text(text)
        plan.script_mark.cache_clear()
        _, _, (run, *_) = settled("my_images", classes, "run=[nopos]", "seeds=[0]")
        keys.add(run.setting.marks["prepared"])
    assert len(keys) == 1 + anew
