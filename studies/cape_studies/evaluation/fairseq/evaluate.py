"""Evaluate translation models of fairseq: ``cape-fairseq-eval bleu``, ``loss``, ``stack``.

Section 4.3 of the paper. Any encoder-decoder of fairseq is taken, ours and its own Transformer
alike. BLEU of test sets, translated by fairseq's generator, at the checkpoint with the best BLEU on
the validation set; the mean negative log loss at each position of the target; and test sets of long
sentences, made of consecutive ones (the paper's 3003 pairs became 270). Every sentence is counted
exactly once, or the command fails.
"""

import argparse
import inspect
import logging
import warnings
from collections.abc import Callable, Sequence
from itertools import product, zip_longest
from typing import Any

from cape_studies.evaluation.command import one_line_errors
from cape_studies.evaluation.fairseq import bleu, stacking
from cape_studies.evaluation.fairseq.checkpoints import sources
from cape_studies.evaluation.fairseq.generate import Test, open_test, score_references, translate
from cape_studies.evaluation.fairseq.options import BleuOptions, LossOptions, StackOptions
from cape_studies.evaluation.options import Options
from cape_studies.evaluation.output import Results, Score, check_absent


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    parser = argparse.ArgumentParser(
        prog="cape-fairseq-eval",
        description="BLEU, loss by position and stacked test sets for fairseq's translation "
        "models; COMMAND --help has the options.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (kind, _) in COMMANDS.items():
        text = inspect.getdoc(kind) or ""
        kind.add_to(commands.add_parser(name, help=text.splitlines()[0], description=text))
    given = parser.parse_args(argv)
    # importing fairseq sets the root logger to INFO or DEBUG
    logging.getLogger().setLevel(logging.WARNING)
    kind, work = COMMANDS[given.command]
    with one_line_errors(f"{parser.prog} {given.command}"), warnings.catch_warnings():
        # of pinned memory without a GPU and masks of two types, both in fairseq's calls
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        work(kind.read(given))


def run_bleu(options: BleuOptions) -> None:
    """Choose checkpoints by BLEU on the validation set, and test them.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    check_absent([options.csv_path, options.items], options.overwrite)
    found = sources(options.model)
    raw = None if options.reference is None else stacking.read_lines(options.reference)
    for name, (path, *others) in found:
        test = open_test(name, path, options.logns[0], options.gen_subset, options)
        if raw is not None and len(raw) != len(test.dataset):
            raise ValueError(
                f"{options.reference} has {len(raw)} lines, {options.gen_subset!r} in "
                f"{options.data} has {len(test.dataset)} sentences"
            )
        if others:
            open_test(name, path, options.logns[0], "valid", options)
    with Results(options.csv_path, options.items) as results:
        for (name, paths), logn in product(found, options.logns):
            best = paths[0]
            if len(paths) > 1:
                valid = {
                    path: _bleu(open_test(name, path, logn, "valid", options), None, options)
                    for path in paths
                }
                best = max(valid, key=lambda path: valid[path][0].value)
                results.add(*valid[best])
            test = open_test(name, best, logn, options.gen_subset, options)
            results.add(*_bleu(test, raw, options))


def _bleu(test: Test, raw: Sequence[str] | None, options: BleuOptions) -> list[Score]:
    language = test.task.cfg.target_lang
    return list(bleu.scores(test.about, translate(test, options), language, raw))


def run_loss(options: LossOptions) -> None:
    """Score references by position.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    check_absent([options.csv_path, options.items], options.overwrite)
    found = sources(options.model, only_best=True)
    trained = [(name, path, logn) for name, (path,) in found for logn in options.logns]
    for one in trained:
        open_test(*one, options.gen_subset, options)
    with Results(options.csv_path, options.items) as results:
        for one in trained:
            test = open_test(*one, options.gen_subset, options)
            for position, nats in enumerate(zip_longest(*score_references(test, options)), 1):
                items = [(i, loss, 1) for i, loss in enumerate(nats) if loss is not None]
                about = {**test.about, "position": position}
                results.add(Score.of(about, "loss", "mean", items))


COMMANDS: dict[str, tuple[type[Options], Callable[[Any], None]]] = {
    "bleu": (BleuOptions, run_bleu),
    "loss": (LossOptions, run_loss),
    "stack": (StackOptions, stacking.write),
}
