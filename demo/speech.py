"""Speech: telephone keys dialled in noise, recognised through ESPnet.

    python demo/speech.py --out results [--quick] [--variants sinpos cape]

Makes 8 kHz WAV files of DTMF tones, trains CTC models with ``espnet2.bin.asr_train`` on
recordings of at most 3 s and decodes longer ones with ``espnet2.bin.asr_inference``.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import editdistance
import numpy as np
import soundfile
import yaml
from common import Report, Run, host_command, run_side_by_side

RATE = 8000  # Hz
ROWS = (697, 770, 852, 941)  # Hz, the lower tone of a key
COLUMNS = (1209, 1336, 1477)  # Hz, the upper
KEYS = {
    **{str(digit): divmod(digit - 1, 3) for digit in range(1, 10)},
    "0": (3, 1),
}


@dataclass(frozen=True)
class Sizes:
    """What ``--quick`` makes smaller.

    Attributes:
        train, valid: recordings.
        tests: duration range in seconds → recordings.
        epochs, iterations: of the training, with that many updates an epoch.
        layers, channels: of the model.
    """

    train: int
    valid: int
    tests: dict[tuple[float, float], int]
    epochs: int
    iterations: int
    layers: int
    channels: int


TRAINED_ON = (1.0, 3.0)  # seconds
FULL = Sizes(
    train=9000,
    valid=60,
    tests={TRAINED_ON: 120, (3.0, 6.0): 50, (6.0, 12.0): 25, (12.0, 24.0): 12, (24.0, 36.0): 6},
    epochs=10,
    iterations=120,
    layers=3,
    channels=128,
)
QUICK = Sizes(
    train=40,
    valid=4,
    tests={TRAINED_ON: 2, (3.0, 6.0): 1},
    epochs=1,
    iterations=4,
    layers=1,
    channels=32,
)

DATA = {
    "tone_seconds": (0.08, 0.30),
    "gap_seconds": (0.06, 0.24),
    "repeated_keys": 0.4,  # the share of keys that repeat the one before
    "snr_decibel": -5.0,  # of a key at level 0
    "level_decibel": (-6.0, 6.0),
    "seed": 0,
}
HOP = 160  # samples: 20 ms, so that one frame after the stride-3 convolution is 60 ms
BATCH_SECONDS = 48.0
PEAK_LEARNING_RATE = 2e-3
SEED = 0
ENCODER = {
    "attention_heads": 4,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.0,
    "conv_dropout_rate": 0.1,
    "layer_drop_rate": 0.0,
    "frame_shift": HOP / RATE,
}
# centred positions reach ±1.5 s in training and ±18 s in the longest test
CAPE = {"max_global_shift": 18.0, "max_global_scale": 1.1}


def main() -> None:
    """Make data, train the variants side by side, decode, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for data and results")
    parser.add_argument("--quick", action="store_true", help="only see whether it runs")
    parser.add_argument(
        "--variants",
        nargs="+",
        default=["sinpos", "cape"],
        choices=["nopos", "sinpos", "abspos", "cape"],
    )
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else FULL
    work = arguments.out.resolve() / "work" / "espnet"

    print(f"speech: generating {sizes.train} training recordings", flush=True)
    make_data(work, sizes)
    print("speech: espnet2.bin.asr_train --collect_stats", flush=True)
    collect_stats(work, sizes)
    print(f"speech: training {', '.join(arguments.variants)} side by side", flush=True)
    seconds = train(work, sizes, arguments.variants)
    print("speech: decoding with espnet2.bin.asr_inference", flush=True)
    scores = decode(work, sizes, arguments.variants)

    report = Report(
        host="espnet",
        task="telephone keys in noise (CTC)",
        condition="duration of the recording",
        metric="WER (%)",
        higher_is_better=False,
        trained_on=[name_of(TRAINED_ON)],
        settings={
            "data": DATA,
            "test_recordings": {name_of(test): count for test, count in sizes.tests.items()},
            "train_recordings": sizes.train,
            "updates": sizes.epochs * sizes.iterations,
            "quick": arguments.quick,
            "config": config(sizes, "<variant>"),
        },
        runs=[Run(v, SEED, scores[v], round(seconds[v], 1)) for v in arguments.variants],
    )
    report.save(arguments.out)
    print(report.table(), flush=True)


def name_of(durations: tuple[float, float]) -> str:
    """The name of a test set."""
    return f"{durations[0]:g}–{durations[1]:g} s"


def dial(random: np.random.Generator, seconds: float) -> tuple[np.ndarray, list[str]]:
    """One recording of about ``seconds``: samples in [-1, 1] at 8 kHz, and the keys dialled.

    Two short presses of a key take as long as one long press: only a gap, short as it may be and
    in noise, tells them apart.
    """
    pieces = [_silence(random, "gap_seconds")]
    keys: list[str] = []
    while sum(map(len, pieces)) < seconds * RATE:
        repeats = bool(keys) and random.random() < DATA["repeated_keys"]
        keys.append(keys[-1] if repeats else str(random.integers(10)))
        gain = _gain(random.uniform(*DATA["level_decibel"]))
        pieces.append(gain * _tone(random, keys[-1]))
        pieces.append(_silence(random, "gap_seconds"))
    clean = np.concatenate(pieces)
    # a key at level 0 has power 1
    noise = random.standard_normal(len(clean), np.float32)
    noise *= _gain(-DATA["snr_decibel"])
    samples = clean + noise
    return samples * (0.9 / np.abs(samples).max()), keys


def _tone(random: np.random.Generator, key: str) -> np.ndarray:
    row, column = KEYS[key]
    time = np.arange(int(random.uniform(*DATA["tone_seconds"]) * RATE)) / RATE
    phases = random.uniform(0, 2 * np.pi, 2)
    tone = np.sin(2 * np.pi * ROWS[row] * time + phases[0])
    return tone + np.sin(2 * np.pi * COLUMNS[column] * time + phases[1])


def _silence(random: np.random.Generator, name: str) -> np.ndarray:
    return np.zeros(int(random.uniform(*DATA[name]) * RATE))


def _gain(decibel: float) -> float:
    return 10 ** (decibel / 20)


def make_data(work: Path, sizes: Sizes) -> None:
    """Write WAV files, ``wav.scp`` and ``text`` of train, valid and test, and the token list."""
    sets = {
        "train": [(TRAINED_ON, sizes.train)],
        "valid": [(TRAINED_ON, sizes.valid)],
        "test": list(sizes.tests.items()),
    }
    for number, (name, ranges) in enumerate(sets.items()):
        folder = work / "data" / name
        (folder / "wav").mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng((DATA["seed"], number))
        scp, text = [], []
        for bin_number, (durations, count) in enumerate(ranges):
            for index in range(count):
                samples, keys = dial(random, random.uniform(*durations))
                utterance = f"bin{bin_number}_{index:05d}"
                path = folder / "wav" / f"{utterance}.wav"
                soundfile.write(path, samples, RATE, subtype="PCM_16")
                scp.append(f"{utterance} {path}\n")
                text.append(f"{utterance} {' '.join(keys)}\n")
        (folder / "wav.scp").write_text("".join(scp))
        (folder / "text").write_text("".join(text))
    tokens = ["<blank>", "<unk>", *sorted(KEYS), "<sos/eos>"]
    (work / "data" / "tokens.txt").write_text("".join(f"{token}\n" for token in tokens))


def config(sizes: Sizes, variant: str) -> dict[str, object]:
    """The YAML of ``asr_train``; the variants differ in ``pos`` and its options alone."""
    updates = sizes.epochs * sizes.iterations
    return {
        "frontend": "default",
        "frontend_conf": {
            "fs": RATE, "n_fft": 256, "win_length": 256, "hop_length": HOP, "n_mels": 40,
        },
        "normalize": "utterance_mvn",
        "normalize_conf": {"norm_means": True, "norm_vars": True},
        "encoder": "cape_transformer",
        "encoder_conf": {
            "pos": variant,
            "num_blocks": sizes.layers,
            "output_size": sizes.channels,
            "linear_units": 4 * sizes.channels,
            **ENCODER,
            **(CAPE if variant == "cape" else {}),
        },
        "model_conf": {"ctc_weight": 1.0, "extract_feats_in_collect_stats": False},
        "optim": "adamw",
        "optim_conf": {"lr": PEAK_LEARNING_RATE, "weight_decay": 0.01},
        "scheduler": "onecyclelr",
        "scheduler_conf": {"max_lr": PEAK_LEARNING_RATE, "total_steps": updates, "pct_start": 0.2},
        "grad_clip": 1.0,
        "max_epoch": sizes.epochs,
        "num_iters_per_epoch": sizes.iterations,
        "batch_type": "numel",
        "batch_bins": int(BATCH_SECONDS * RATE),
        "best_model_criterion": [["valid", "cer_ctc", "min"]],
        "keep_nbest_models": 1,
        "seed": SEED,
        "num_workers": 0,
        "log_interval": 60,
        "use_tensorboard": False,
        "use_matplotlib": False,
    }  # fmt: skip


def _data_flags(work: Path) -> list[object]:
    flags: list[object] = ["--use_preprocessor", "true", "--token_type", "word"]
    flags += ["--token_list", work / "data" / "tokens.txt", "--ngpu", 0]
    for name in ("train", "valid"):
        flag = f"--{name}_data_path_and_name_and_type"
        flags += [flag, f"{work / 'data' / name / 'wav.scp'},speech,sound"]
        flags += [flag, f"{work / 'data' / name / 'text'},text,text"]
    return flags


def _write_config(work: Path, sizes: Sizes, variant: str) -> Path:
    path = work / f"{variant}.yaml"
    path.write_text(yaml.safe_dump(config(sizes, variant), sort_keys=False))
    return path


def collect_stats(work: Path, sizes: Sizes) -> None:
    """Write the shape files that batching needs."""
    command = host_command(
        *("espnet2.bin.asr_train", "--config", _write_config(work, sizes, "nopos")),
        *("--collect_stats", "true", "--batch_type", "unsorted", "--batch_size", 50),
        *("--output_dir", work / "stats", *_data_flags(work)),
    )
    run_side_by_side({"stats": command}, work / "log", show=["Niter:"])


def train(work: Path, sizes: Sizes, variants: Sequence[str]) -> dict[str, float]:
    """Train the variants; returns variant → wall time in seconds."""
    jobs = {}
    for variant in variants:
        shapes: list[object] = []
        for name in ("train", "valid"):
            for kind in ("speech_shape", "text_shape"):
                shapes += [f"--{name}_shape_file", work / "stats" / name / kind]
        jobs[variant] = host_command(
            *("espnet2.bin.asr_train", "--config", _write_config(work, sizes, variant)),
            *("--output_dir", work / "exp" / variant, *shapes, *_data_flags(work)),
        )
    return run_side_by_side(jobs, work / "log", show=["epoch:train:"])


def decode(work: Path, sizes: Sizes, variants: Sequence[str]) -> dict[str, dict[str, float]]:
    """Recognise the test recordings; returns variant → duration range → WER in percent."""
    test = work / "data" / "test"
    jobs = {
        f"decode_{variant}": host_command(
            *("espnet2.bin.asr_inference", "--ngpu", 0, "--beam_size", 1, "--ctc_weight", 1.0),
            *("--data_path_and_name_and_type", f"{test / 'wav.scp'},speech,sound"),
            *("--asr_train_config", work / "exp" / variant / "config.yaml"),
            *("--asr_model_file", work / "exp" / variant / "valid.cer_ctc.best.pth"),
            *("--output_dir", work / "exp" / variant / "decode", "--log_level", "INFO"),
        )
        for variant in variants
    }
    run_side_by_side(jobs, work / "log", show=[])
    names = {f"bin{number}": name_of(durations) for number, durations in enumerate(sizes.tests)}
    references = read_text(test / "text")
    scores = {}
    for variant in variants:
        found = read_text(work / "exp" / variant / "decode" / "1best_recog" / "token")
        scores[variant] = error_rates(references, found, names)
    return scores


def read_text(path: Path) -> dict[str, list[str]]:
    """Read a Kaldi text file: utterance → words."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {words[0]: words[1:] for words in lines}


def error_rates(
    references: dict[str, list[str]], found: dict[str, list[str]], names: dict[str, str]
) -> dict[str, float]:
    """Word errors per 100 reference words, by the test set that an utterance's name begins with."""
    rates = {}
    for prefix, name in names.items():
        utterances = [u for u in references if u.startswith(f"{prefix}_")]
        errors = sum(editdistance.eval(references[u], found[u]) for u in utterances)
        rates[name] = 100 * errors / sum(len(references[u]) for u in utterances)
    return rates


if __name__ == "__main__":
    main()
