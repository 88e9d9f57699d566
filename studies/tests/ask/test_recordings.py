"""A user's recordings: the longest held out, what follows from the rest, each fault by name."""

import csv
import os
import shutil
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import soundfile
import yaml

pytest.importorskip("espnet2")

from espnet2.fileio.read_text import read_2columns_text

from cape_studies.data.split import held_out
from cape_studies.prepare import chosen, recordings

CHOICES = ("batch_bins", "epochs", "max_epoch", "num_iters_per_epoch")


def prepared(folder, **options):
    """The facts, and part → name → transcript, as ESPnet reads them."""
    out = folder.parent / "out"
    choices = {name: options.pop(name) for name in CHOICES if name in options}
    shutil.rmtree(out, ignore_errors=True)
    recordings.prepare(folder, out, **options)
    facts = chosen.recordings(yaml.safe_load((out / "facts.yaml").read_text("utf-8")), **choices)
    parts = {path.parent.name: read_2columns_text(path) for path in sorted(out.glob("*/text"))}
    for name, part in parts.items():
        scp = read_2columns_text(out / name / "wav.scp")
        assert scp.keys() == part.keys()
        assert all(soundfile.info(path).samplerate == facts["rate"] for path in scp.values())
    return facts, parts


def test_recordings_are_in_one_part_each_and_the_longest_in_tests_of_their_own(wavs):
    facts, parts = prepared(wavs)
    names = [name for part in parts.values() for name in part]
    assert len(names) == len(set(names)) == 60
    long = {name for i in (1, 2, 3) for name in parts[f"test{i}"]}
    assert long == {f"u{i}" for i in range(48, 60)}
    out = wavs.parent / "out"
    audio = [path for path in out.rglob("*.[wf]*") if path.suffix != ".scp"]
    assert len(audio) == 60
    assert all(path.is_symlink() for path in audio)  # nothing is converted
    assert facts["tests"][1:] == [
        f"2.9–3.0 s={out}/test1", f"3.1–3.2 s={out}/test2", f"3.3–3.5 s={out}/test3"
    ]  # fmt: skip
    assert facts["tests"][0] == f"{facts['within']}={out}/test"
    assert prepared(wavs)[1] == parts


def test_what_a_study_needs_follows_from_the_recordings(wavs):
    facts, parts = prepared(wavs)
    about = {"rate": 8000, "n_fft": 256, "win_length": 200, "hop_length": 80, "n_mels": 40}
    about |= {"token_type": "word", "batch_bins": 400_000, "updates": 1500}
    assert facts.items() >= about.items()
    seconds = sum(4000 + 400 * int(name[1:]) for name in parts["train"]) / 8000
    assert f"{len(parts['train'])} ({seconds:.0f} s) to train on" in facts["found"]
    assert "1,500 updates, about 1,300 epochs" in facts["found"]  # of 56 s, in batches of 50 s
    assert "60 recordings (60 .txt, 54 .wav, 6 .flac) at 8000 Hz" in facts["found"]
    # CAPE's shift is not taken from recordings of the tests
    longest = max(4000 + 400 * int(name[1:]) for name in parts["train"]) / 8000
    assert facts["max_global_shift"] == round(longest / 2, 1)
    sound = np.random.default_rng(0).normal(0, 0.1, 90_000)
    soundfile.write(wavs / "u59.wav", sound, 8000)  # the longest of all, three times as long
    assert prepared(wavs)[0]["max_global_shift"] == facts["max_global_shift"]


def test_the_length_of_training_is_that_of_epochs(wavs):
    ten, twenty = (prepared(wavs, epochs=many, batch_bins=8000)[0] for many in (10, 20))
    assert "about 11 epochs" in ten["found"]  # 6 rounds of 100 updates, whole ones
    assert twenty["updates"] == pytest.approx(2 * ten["updates"], rel=0.1)
    assert ten["updates"] == ten["max_epoch"] * ten["num_iters_per_epoch"]
    short, _ = prepared(wavs, max_epoch=1, num_iters_per_epoch=4)
    assert short.items() >= {"max_epoch": 1, "num_iters_per_epoch": 4, "updates": 4}.items()


def test_a_batch_that_holds_all_recordings_is_one_pass():
    facts = {"rate": 8000, "seconds": 35.0, "found": "88 recordings", "left_out": ""}
    assert "1,500 updates, about 1,500 epochs" in chosen.recordings(facts)["found"]


def moved(folder, part):
    """Bring each recording into the folder that ``part`` gives for its number."""
    for number in range(60):
        path = next(folder.glob(f"u{number:02}.[wf]*"))
        place = folder / part(number)
        place.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt").rename(place / f"{path.stem}.txt")
        path.rename(place / path.name)


@pytest.mark.parametrize("name", ["test", "Validation"])
def test_the_tests_are_of_a_users_own_test_alone(wavs, name):
    moved(wavs, lambda number: name if number % 3 == 0 else "train")
    facts, parts = prepared(wavs)
    assert f"tested on those in {name}/" in facts["found"]
    for part, keys in parts.items():
        whose = {key.split("/")[0] for key in keys}
        assert whose == {name if part.startswith("test") else "train"}
    longest = max(int(key[-2:]) for key in parts["test"])
    assert max(int(key[-2:]) for key in parts["train"]) <= longest
    assert "longer than the test of training's durations" in facts["found"]


def test_what_is_in_neither_part_of_a_users_split_is_left_out_and_counted(wavs):
    moved(wavs, lambda number: ("train", "test", "train", "valid", "train")[number % 5])
    facts, parts = prepared(wavs)
    used = {key.split("/")[0] for part in parts.values() for key in part}
    assert used == {"train", "test"}
    left = 60 - sum(map(len, parts.values()))
    assert f"WARNING: {left} of 60 recordings are left out" in facts["found"]


def test_a_split_by_groups_trains_on_nothing_of_those_it_tests(wavs):
    moved(wavs, lambda number: f"day/ann {number % 4}")
    facts, parts = prepared(wavs, group="ann_([0-9])")
    heard = {key[8] for part in ("train", "valid") for key in parts[part]}
    tested = {key[8] for part in parts for key in parts[part] if part.startswith("test")}
    assert (len(heard), len(tested)) == (3, 1)
    assert not heard & tested
    (one,) = tested
    assert f"1 of 4 groups, of which nothing is trained on: {one}" in facts["found"]
    assert prepared(wavs, group="ann_([0-9])")[1] == parts
    assert facts["groups"] == {"within": 1, "beyond": 1}
    with (wavs.parent / "out" / "groups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["group"] for row in rows} == tested
    assert {row["item"] for row in rows} == {
        key for part in parts for key in parts[part] if part.startswith("test")
    }


@pytest.mark.parametrize(("groups", "held"), [(4, 1), (9, 1), (10, 5), (24, 5), (50, 10)])
def test_a_fifth_of_the_groups_is_for_testing_or_the_five_that_a_claim_needs(groups, held):
    found, how = held_out(f"ann {number}" for number in range(groups))
    assert len(found) == held
    assert f"{held} of {groups} groups" in how


def test_a_group_in_training_and_in_the_users_own_test_is_named(wavs):
    moved(wavs, lambda number: f"{'test' if number % 3 == 0 else 'train'}/ann {number % 2}")
    with pytest.raises(ValueError, match="group ann_0 is in training and in a test"):
        prepared(wavs, group="ann_.")


@pytest.mark.parametrize(
    ("group", "named"),
    [("[", "no regular expression"), ("bob", "finds nothing in u00"), ("u", "finds one group")],
)
def test_an_expression_that_tells_no_groups_apart_is_named(wavs, group, named):
    with pytest.raises(ValueError, match=rf"group=.*{named}"):
        prepared(wavs, group=group)


def test_letters_written_as_one_character_or_as_two_are_one_token(wavs):
    for number, path in enumerate(sorted(wavs.glob("*.txt"))):
        form = "NFD" if number % 2 else "NFC"
        path.write_text(unicodedata.normalize(form, f"olé {number}"), "utf-8")
    facts, _ = prepared(wavs, token_type="char")
    tokens = (wavs.parent / "out" / "tokens.txt").read_text("utf-8").splitlines()
    assert "é" in tokens
    assert "\u0301" not in tokens
    assert "30 transcripts brought to Unicode's NFC" in facts["found"]


def test_the_frames_of_another_encoder_are_those_that_a_transcript_must_fit_into(wavs):
    (wavs / "u03.txt").write_text("no " * 18)  # of 0.65 s
    prepared(wavs)
    with pytest.raises(ValueError, match=r"u03\.wav .* in 40 ms"):
        prepared(wavs, frame=0.04)


def test_a_word_of_the_command_line_that_is_no_number_is_one_line_with_its_option(wavs):
    command = [sys.executable, "-m", "cape_studies.prepare.recordings", "--wavs", wavs]
    command += ["--out", "out", "--frame", "long"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--frame" in line
    assert "long" in line


def test_files_of_other_kinds_are_told(wavs):
    (wavs / "more.mp3").write_bytes(b"")
    (wavs / "._u01.wav").write_bytes(b"of a Mac")
    assert "left out: 1 .mp3" in prepared(wavs)[0]["found"]


@pytest.mark.parametrize(("rate", "shift"), [(8000, 0.01), (22050, 220 / 22050)])
def test_frames_are_as_far_apart_as_the_hop_of_the_sampling_rate_makes_them(wavs, rate, shift):
    for path in [*wavs.glob("*.wav"), *wavs.glob("*.flac")]:
        samples, _ = soundfile.read(path)
        soundfile.write(path, samples, rate)
    facts, _ = prepared(wavs)
    assert facts["frame_shift"] == pytest.approx(shift, rel=1e-6)
    assert facts["hop_length"] / facts["rate"] == facts["frame_shift"]


def latin(folder):
    (folder / "u05.wav").rename(os.fsdecode(os.fsencode(folder) + b"/\xe9.wav"))


def in_another_encoding(folder):
    """One recording in several files, as WAV and as FLAC."""
    samples, rate = soundfile.read(folder / "u01.wav", dtype="int16")
    for number in range(2, 10):
        (folder / f"u{number:02}.wav").unlink()
        soundfile.write(folder / f"u{number:02}.flac", samples, rate)


def cut_off(folder, name, size):
    (folder / name).write_bytes((folder / name).read_bytes()[:size])


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda of: (of / "u03.txt").unlink(), r"u03\.wav has no transcript"),
        (lambda of: (of / "u04.txt").write_text(" \n"), r"u04\.wav has no transcript"),
        (lambda of: (of / "u04.txt").write_bytes(b"\xe9"), r"u04\.txt is not UTF-8"),
        (
            lambda of: soundfile.write(of / "u05.wav", np.arange(9900) / 9900, 16000),
            r"u05\.wav at 16000",
        ),
        (lambda of: soundfile.write(of / "u07.wav", np.zeros(0), 8000), r"u07\.wav is empty"),
        (lambda of: soundfile.write(of / "u07.wav", np.zeros((9, 2)), 8000), "2 channels"),
        (lambda of: soundfile.write(of / "u07.wav", np.zeros(9900), 8000), r"u07\.wav is silent"),
        (lambda of: cut_off(of, "u10.flac", 3000), r"u10\.flac"),
        (lambda of: cut_off(of, "u59.wav", 9000), r"u59\.wav is cut off"),
        (latin, r"udce9\.wav' has a name that is not UTF-8"),
        (in_another_encoding, r"u0\d\.(wav|flac) of a test .*u0\d\.(flac|wav) of training"),
        (
            lambda of: [path.write_text("one") for path in of.glob("*.txt")],
            "have one transcript, 'one'",
        ),
        (
            lambda of: (of / "u03.txt").write_text("no " * 99),
            r"u03\.wav lasts 0\.65 s, .*99 words",
        ),
    ],
)
def test_a_fault_of_recordings_is_named_with_its_file(wavs, spoil, named):
    spoil(wavs)
    with pytest.raises(ValueError, match=named):
        prepared(wavs)


def test_fifty_recordings_are_enough_and_fewer_are_refused(wavs):
    for number in range(50, 60):
        next(wavs.glob(f"u{number}.[wf]*")).unlink()
    prepared(wavs)
    (wavs / "u49.wav").unlink()
    with pytest.raises(ValueError, match=r"has 49 recordings .*: 50 are needed"):
        prepared(wavs)
