"""A corpus and ESPnet's commands, in this process.

ESPnet takes some 10 s of CPU to import, hence no process for each command.
"""

import importlib
import logging
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from espnet_support import FEATURES, RATE, SIZES

if find_spec("espnet2") is None:
    collect_ignore_glob = ["test_*.py"]

PITCH = {"low": 300, "mid": 900, "high": 2700}  # Hz
CONFIG = {
    **{"frontend": "cape_fbank", "frontend_conf": {"fs": RATE, "n_mels": FEATURES}},
    **{"normalize": "utterance_mvn", "normalize_conf": {"norm_vars": True}},
    **{"model": "cape_asr", "model_conf": {"ctc_weight": 1.0}},
    **{"encoder": "cape_transformer", "encoder_conf": {**SIZES, "linear_units": 32}},
    **{"optim": "adam", "max_epoch": 1, "best_model_criterion": [["valid", "loss", "min"]]},
    **{"batch_type": "unsorted", "batch_size": 4, "num_workers": 0, "ngpu": 0},
    **{"token_type": "word", "token_list": ["<blank>", "<unk>", *PITCH, "<sos/eos>"]},
    **{"use_tensorboard": False, "use_matplotlib": False, "output_dir": "unused"},
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """train and valid: 12 and 4 recordings of 1 to 2 s of words, each a tone; Kaldi's files."""
    import soundfile

    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("valid", 4)):
        (folder / part).mkdir()
        scp, text, shape = "", "", ""
        for index in range(count):
            words = random.choice(list(PITCH), size=4).tolist()
            time = np.arange((RATE + index * RATE // 12) // 4) / RATE
            tones = [np.sin(2 * np.pi * PITCH[w] * time) * np.hanning(len(time)) for w in words]
            samples = 0.5 * np.concatenate(tones)
            samples += 0.01 * random.standard_normal(len(samples))
            soundfile.write(folder / part / f"{index}.wav", samples, RATE)
            scp += f"{part}{index} {folder / part / f'{index}.wav'}\n"
            text += f"{part}{index} {' '.join(words)}\n"
            shape += f"{part}{index} {len(samples)}\n"
        for name, content in (("wav.scp", scp), ("text", text), ("speech_shape", shape)):
            (folder / part / name).write_text(content)
    return folder


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """settings → ``--config`` and a YAML file of CONFIG, with these in place of its own."""
    import yaml

    def written(**settings: object) -> list[str]:
        file = tmp_path_factory.mktemp("config") / "config.yaml"
        file.write_text(yaml.safe_dump({**CONFIG, **settings}))
        return ["--config", str(file)]

    return written


@pytest.fixture(scope="session")
def parse(written):
    """flags, settings → what asr_train makes of them."""
    from espnet2.tasks.asr import ASRTask

    def parse(*flags: str, **settings: object) -> Namespace:
        return ASRTask.get_parser().parse_args([*written(**settings), *flags])

    return parse


@pytest.fixture(scope="session")
def build(parse):
    """flags, settings → the model that asr_train builds."""
    from espnet2.tasks.asr import ASRTask

    def build(*flags: str, **settings: object) -> torch.nn.Module:
        torch.manual_seed(0)
        return ASRTask.build_model(parse(*flags, **settings))

    return build


@pytest.fixture(scope="session")
def run():
    """command, flags → ``python -m espnet2.bin.<command>``, in this process."""

    def run(command: str, *flags: object) -> None:
        main = importlib.import_module(f"espnet2.bin.{command}").main
        handlers = logging.root.handlers[:]
        try:
            main(cmd=[*map(str, flags)])
        finally:
            logging.root.handlers[:] = handlers

    return run


@pytest.fixture(scope="session")
def data(corpus):
    """Flags that name the corpus, or another list of files, ``train``."""

    def data(train: Path | None = None) -> list[str]:
        flags = []
        for part in ("train", "valid"):
            scp = train if train and part == "train" else corpus / part / "wav.scp"
            kind = "kaldi_ark" if scp.suffix == ".ark" else "sound"
            for given in (f"{scp},speech,{kind}", f"{scp.parent / 'text'},text,text"):
                flags += [f"--{part}_data_path_and_name_and_type", given]
            flags += [f"--{part}_shape_file", f"{scp.parent / 'speech_shape'}"]
        return flags

    return data


@pytest.fixture(scope="session")
def asr_train(run, written, data):
    """out, flags, settings → a training on the corpus, or with another list of files, ``train``."""

    def asr_train(out: Path, *flags: object, train: Path | None = None, **settings: object) -> None:
        run("asr_train", *written(**settings), *data(train), "--output_dir", out, *flags)

    return asr_train


@pytest.fixture(scope="session")
def trained(asr_train, tmp_path_factory) -> Path:
    """The folder of a training of one epoch, with sinpos and batches without padding."""
    out = tmp_path_factory.mktemp("trained")
    conf = {**CONFIG["encoder_conf"], "pos": "sinpos", "layer_drop_rate": 0.3}
    batches = {"iterator_type": "task", "batch_type": "length", "batch_bins": 8 * RATE}
    epochs = {"num_iters_per_epoch": 20, "keep_nbest_models": 3, "optim_conf": {"lr": 0.003}}
    asr_train(out, encoder_conf=conf, **batches, **epochs)
    return out


@pytest.fixture(scope="session")
def recognise(run):
    """training's folder, list of audio, folder to write, flags → utterance → words."""

    def recognise(exp: Path, scp: Path, out: Path, *flags: object) -> dict[str, str]:
        given = ["--asr_train_config", exp / "config.yaml", "--asr_model_file", exp / "1epoch.pth"]
        given += ["--data_path_and_name_and_type", f"{scp},speech,sound", "--output_dir", out]
        run("asr_inference", *given, "--beam_size", 1, "--ctc_weight", 1.0, "--ngpu", 0, *flags)
        lines = (out / "1best_recog" / "text").read_text().splitlines()
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}

    return recognise
