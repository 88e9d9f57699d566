"""What studies of a user's data leave open is set by the data, and what the user sets stays."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from cape_studies.ask.settings import settle
from cape_studies.experiments import plan, study
from cape_studies.experiments.hosts import Machine


def settled(name, folder, *changes, machine=None, quick=False):
    (one,) = study.load(study.find(name), changes, quick)
    out = folder.parent / "out"
    settle(one, {one.answer.data: folder}, machine or Machine(), out)
    data = {one.answer.data: folder}
    setting, _ = plan.prepare(one, out, machine or Machine(), data)
    runs = [plan.Run(setting, variant, seed) for variant in one.run for seed in one.seeds]
    return one, [" ".join(run.train_command) for run in runs], runs


@pytest.fixture
def images(tmp_path):
    for number in range(40):
        path = tmp_path / "mine" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (70, 80), (number, 0, 0)).save(path)
    return tmp_path / "mine"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "mine").mkdir()
    lines = [" ".join(["wort", str(i)] * (1 + i % 10)) for i in range(100)]
    for language in ("de", "en"):
        text = "".join(f"{line} {language}\n" for line in lines)
        (tmp_path / "mine" / f"train.{language}").write_text(text)
    return tmp_path / "mine"


@pytest.fixture
def wavs(tmp_path):
    (tmp_path / "mine").mkdir()
    for number in range(60):
        path = tmp_path / "mine" / f"{number:02}.wav"
        soundfile.write(path, np.zeros(16000 + 320 * number), 16000)
        path.with_suffix(".txt").write_text(f"hello {number // 6}")
    return tmp_path / "mine"


def test_images_set_their_side_patches_model_and_steps(images):
    one, commands, _ = settled("my_images", images)
    assert "--img-size 64 " in commands[0]
    assert "patch_size=8 embed_dim=64 depth=4 num_heads=2" in commands[0]
    assert "--steps 50 " in commands[0]  # 32 images 100 times, in batches of 64
    assert one.evaluations["size"].options["resolutions"] == [48, 64, 96, 128]
    assert one.report.trained_on == ["64"]
    assert one.answer.chance == pytest.approx(50 + 3 * 50 / 8**0.5)  # of eight test images
    assert "2 classes, 32 images to train on and 8 to test" in one.answer.found
    assert len(commands) == 7 * 3


def test_what_a_user_sets_stays(images):
    change = ["options.img-size=32", "options.epochs=4", "options.model-kwargs.depth=2"]
    one, (command, _), _ = settled(
        "my_images", images, *change, "run=[rope,cape_rope]", "seeds=[5]"
    )
    assert "patch_size=4 embed_dim=64 depth=2" in command
    assert "--steps 2 " in command
    assert one.evaluations["size"].options["resolutions"] == [24, 32, 48, 64]
    assert one.report.baseline == "rope"


def test_a_quick_run_of_images_is_short(images):
    _, commands, _ = settled("my_images", images, quick=True)
    assert len(commands) == 7
    assert "--steps 20 " in commands[0]


def test_train_py_of_timm_trains_where_it_is_given(images):
    machine = Machine(timm_scripts=Path("scripts"))
    _, commands, runs = settled("my_images", images, machine=machine)
    gap = commands[3 * [*runs[0].study.variants].index("rope_gap")]
    assert "scripts/train.py" in gap
    assert "--epochs 100 " in gap
    assert "--num-classes 2 " in gap
    assert "--gp avg" in gap
    assert "global_pool" not in gap
    assert runs[0].checkpoint == "last.pth.tar"


def test_sentences_set_their_tests_and_updates(text):
    one, commands, _ = settled("my_sentences", text, "+prepare.prepared.options.source=en")
    assert one.prepare["prepared"].options["source"] == "en"
    tests = one.evaluations["length"].options["gen-subset"].split(",")
    assert one.report.trained_on == tests[:1] == ["1-17"]
    assert len(tests) == 3  # of two lengths beyond: 19 and 21 words
    assert "--max-update" in commands[0]


def test_recordings_set_their_rate_tokens_and_shifts(wavs):
    one, commands, _ = settled("my_recordings", wavs)
    assert "--frontend_conf fs=16000 --frontend_conf n_fft=512" in commands[0]
    assert "--frontend_conf hop_length=160 --frontend_conf n_mels=80" in commands[0]
    assert "--token_type word" in commands[0]
    assert "max_global_shift=1.1" in "".join(commands)  # half of the longest, 2.2 s
    tests = one.evaluations["duration"].options["data"]
    assert [test.split("=")[0] for test in tests][:2] == ["up to 1.9 s", "2.0–2.0 s"]
    assert one.report.trained_on == ["up to 1.9 s"]


def test_results_among_the_data_are_refused(images):
    (one,) = study.load(study.find("my_images"))
    with pytest.raises(ValueError, match="lies in the data"):
        settle(one, {"images": images}, Machine(), images / "out")


def test_a_backbone_is_fine_tuned_as_it_is_and_as_its_twin(images):
    name = "vit_tiny_patch16_dinov3_qkvb"
    one, commands, runs = settled("my_backbone", images, f"options.model={name}", "seeds=[0]")
    of = dict(zip((run.variant for run in runs), commands, strict=True))
    assert list(of) == ["stock", "augmented", "cape", "moved"]
    assert all("--pretrained " in command for command in commands)
    assert f"--model {name} " in of["stock"]
    assert f"--model {name}_cape " in of["cape"]
    assert "rope_shift_coords=0.5" in of["augmented"]
    assert "--train-split anywhere" in of["moved"]
    assert one.answer.floor == "stock"
    assert one.evaluations["size"].options["resolutions"] == [192, 256, 384, 512]


def test_a_backbone_without_a_twin_is_refused(images):
    with pytest.raises(ValueError, match="has no _cape twin"):
        settled("my_backbone", images, "options.model=resnet18")
