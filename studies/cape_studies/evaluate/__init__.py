"""Evaluators of the hosts' models: ``python -m cape_studies.evaluate timm`` is cape-timm-eval."""

import importlib
import logging
import warnings
from collections.abc import Sequence

from cape_studies import command

THEN = "--then"  # stands between two evaluations of one process


def call(host: str, argv: Sequence[str] | None = None) -> None:
    """The command of a host; its module ``evaluate`` is imported now, not before.

    The module has ``OPTIONS``, their class, and ``run``, which gives the scores one by one.
    """
    prog = f"cape-{host}-eval"
    with command.one_line_errors(prog):
        try:
            module = importlib.import_module(f"cape_studies.evaluate.{host}.evaluate")
            write = importlib.import_module("cape_studies.evaluate.output").write
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'cape-studies[{host}]'") from error
    logging.basicConfig(format="%(message)s")
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets INFO or DEBUG
    with warnings.catch_warnings():
        # the hosts' calls warn of pinned memory without a GPU and of masks of two types, and in
        # every batch of autocast's old name
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        warnings.filterwarnings("ignore", category=FutureWarning, module="espnet2")
        work = lambda options: write(options, module.run(options))  # noqa: E731
        command.main(prog, module.OPTIONS, work, argv)
