"""fairseq's own commands, and a small corpus for them."""

import io
import logging
import multiprocessing
import os
import shlex
import sys
import tempfile
from importlib import import_module
from pathlib import Path

PAIRS = [
    ("a dog runs", "ein hund rennt"),
    ("the dog runs", "der hund rennt"),
    ("a small dog runs fast", "ein kleiner hund rennt schnell"),
    ("the cat sleeps", "die katze schläft jetzt"),
    ("a cat sleeps on the sofa", "eine katze schläft jetzt auf dem sofa"),
    ("the small cat sees the dog", "die kleine katze sieht den hund"),
    ("the dog sees a cat", "der hund sieht eine katze"),
    ("on the sofa sleeps a dog", "auf dem sofa schläft jetzt ein hund"),
    ("runs", "rennt"),
    ("the cat runs and the dog sleeps", "die katze rennt und der hund schläft jetzt"),
]


def ratio(pairs):
    """Tokens of targets / of sources; each sentence counts its words and one EOS, no BOS."""
    source, target = (sum(len(pair[side].split()) + 1 for pair in pairs) for side in (0, 1))
    return target / source


# of a tiny model that learns, in the order of the data
TRAIN = """
    --arch cape_transformer_tiny --encoder-normalize-before --decoder-normalize-before --dropout 0
    --optimizer adam --lr 0.005 --criterion label_smoothed_cross_entropy --batch-size 5 --cpu
    --num-workers 0 --log-format simple --seed 3 --no-epoch-checkpoints
    --required-batch-size-multiple 1
"""  # the last: else fairseq-fixed drops the rest of a batch that 8 does not divide

NAMES = ("preprocess", "train", "generate", "interactive", "validate", "eval_lm", "hydra_train")
COMMANDS = {f"fairseq-{name.replace('_', '-')}": f"fairseq_cli.{name}" for name in NAMES}
# commands run in children of a process that has imported fairseq already
SERVER = multiprocessing.get_context("forkserver")
# torch._dynamo: what the first step of an optimizer imports
SERVER.set_forkserver_preload([*COMMANDS.values(), "torch._dynamo", __name__])


def run(line: str, text: str = "", **env: str) -> str:
    """What the line of one of fairseq's console commands prints, which must not fail."""
    status, output = call(line, text, **env)
    assert status == 0, f"{line} failed:\n{output[-5000:]}"
    return output


def preprocess(folder, pairs, flags=""):
    """Sentence pairs through fairseq-preprocess, as train, valid and test; gives the folder.

    In this process: one of its own takes seconds.
    """
    from fairseq.options import get_preprocessing_parser
    from fairseq_cli.preprocess import main

    for side, language in enumerate(("en", "de")):
        (folder / f"text.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
    text = folder / "text"
    files = f"--trainpref {text} --validpref {text} --testpref {text} --destdir {folder}/bin"
    line = f"--source-lang en --target-lang de {flags} {files}"
    main(get_preprocessing_parser().parse_args(line.split()))
    return folder / "bin"


def train(data, folder, flags="", **env):
    """Train a tiny model into a folder; (what is in its last checkpoint, the output)."""
    import torch

    output = run(f"fairseq-train {data} {TRAIN} --save-dir {folder} {flags}", **env)
    return torch.load(folder / "checkpoint_last.pt", weights_only=True), output


def configure(data, flags="", arch="cape_transformer_tiny"):
    """A command line of fairseq-train → (fairseq's config, its task)."""
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    parser, line = options.get_training_parser(), f"{data} --arch {arch} {flags}"
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, line.split()))
    return config, tasks.setup_task(config.task)


def call(line: str, text: str = "", **env: str) -> tuple[int, str]:
    """(exit status, output and errors together).

    In a process of its own where the environment is another, else in a child of a warm one.
    """
    command, *arguments = shlex.split(line)
    if env:
        from cape_support import run as run_alone

        return run_alone(command, *arguments, **{"CUDA_VISIBLE_DEVICES": "", **env})
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        args = (COMMANDS[command], [command, *arguments], text, str(output))
        process = SERVER.Process(target=_child, args=args)
        process.start()
        process.join()
        return process.exitcode, output.read_text(encoding="utf-8")


def _child(module: str, argv: list[str], text: str, output: str) -> None:
    # else a worker of a DataLoader starts a server of its own
    multiprocessing.set_start_method("fork", force=True)
    file = os.open(output, os.O_CREAT | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv, sys.stdin = argv, io.StringIO(text)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    logging.root.handlers[:] = [logging.StreamHandler(sys.stdout)]
    logging.root.setLevel(logging.INFO)
    import_module(module).cli_main()
