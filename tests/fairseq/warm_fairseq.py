"""fairseq's commands in children of a process that has imported fairseq already."""

import io
import logging
import multiprocessing
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

NAMES = ("preprocess", "train", "generate", "interactive", "validate", "eval_lm", "hydra_train")
COMMANDS = {f"fairseq-{name.replace('_', '-')}": f"fairseq_cli.{name}" for name in NAMES}
SERVER = multiprocessing.get_context("forkserver")
# torch._dynamo: what the first step of an optimizer imports
SERVER.set_forkserver_preload([*COMMANDS.values(), "torch._dynamo", __name__])


def call(command: str, arguments: list[str], text: str) -> tuple[int, str]:
    """(exit status, output and errors together)."""
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
