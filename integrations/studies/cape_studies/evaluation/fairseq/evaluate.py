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
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from cape_studies.evaluation.command import one_line_errors
from cape_studies.evaluation.fairseq import bleu, stacked_data
from cape_studies.evaluation.fairseq.checkpoints import Source, load, sources
from cape_studies.evaluation.fairseq.generate import Test, open_test, score_references, translate
from cape_studies.evaluation.fairseq.options import (
    BleuOptions,
    LossOptions,
    ModelOptions,
    StackOptions,
)
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
    found = sources(options.model, from_epoch=options.from_epoch)
    raw = None if options.reference is None else stacked_data.read_lines(options.reference)
    for source in found:
        test = _open(source, source.candidates[0], options.logns[0], options.gen_subset, options)
        if raw is not None and len(raw) != len(test.dataset):
            raise ValueError(
                f"{options.reference} has {len(raw)} lines, {options.gen_subset!r} in "
                f"{options.data} has {len(test.dataset)} sentences"
            )
        if len(source.candidates) > 1:
            _open(source, source.candidates[0], options.logns[0], options.valid_subset, options)
    if raw is None:
        print(
            "warning: without --reference sacreBLEU is against detokenised references: do not "
            "compare it with published numbers",
            file=sys.stderr,
        )
    with Results(options.csv_path, options.items) as results:
        for source, logn in product(found, options.logns):
            best, subset = source.candidates[0], options.valid_subset
            if len(source.candidates) > 1:
                valid = {
                    path: _bleu(_open(source, path, logn, subset, options), None, options)
                    for path in source.candidates
                }
                best = max(valid, key=lambda path: valid[path][0].value)
                results.add(*valid[best])
            test = _open(source, best, logn, options.gen_subset, options)
            results.add(*_bleu(test, raw, options))


def _bleu(test: Test, raw: Sequence[str] | None, options: BleuOptions) -> list[Score]:
    moses = options.post_process != "sentencepiece"
    texts, language = translate(test, options), test.task.cfg.target_lang
    scores = []
    for metric, each in bleu.compared(texts, language, raw, moses=moses).items():
        print(f"{test.title} {metric}: {each}", flush=True)
        scores.append(Score.of(test.about, metric, each.how, each.items()))
    return scores


def run_loss(options: LossOptions) -> None:
    """Score references by position.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    check_absent([options.csv_path, options.items], options.overwrite)
    subset, found = options.gen_subset, sources(options.model, only_best=True)
    trained = [(source, source.candidates[0], logn) for source in found for logn in options.logns]
    for one in trained:
        _open(*one, subset, options)
    with Results(options.csv_path, options.items) as results:
        for one in trained:
            test = _open(*one, subset, options)
            losses = score_references(test, options)
            positions: list[list[tuple[int, float, int]]] = [[] for _ in max(losses, key=len)]
            for sentence, nats in enumerate(losses):
                for here, loss in zip(positions, nats, strict=False):
                    here.append((sentence, loss, 1))
            for position, items in enumerate(positions, 1):
                about = {**test.about, "position": position}
                results.add(Score.of(about, "loss", "mean", items))
            tokens = sum(map(len, losses))
            mean = sum(map(sum, losses)) / tokens
            print(f"{test.title}: {mean:.4f} nats, {tokens} tokens, {len(losses)} sentences")


COMMANDS: dict[str, tuple[type[Options], Callable[[Any], None]]] = {
    "bleu": (BleuOptions, run_bleu),
    "loss": (LossOptions, run_loss),
    "stack": (StackOptions, stacked_data.write),
}


def _open(source: Source, path: Path, logn: int | None, subset: str, options: ModelOptions) -> Test:
    about = {"model": source.name, "checkpoint": str(path), "logn": logn}
    return open_test(*load(path, logn, options), {**about, "subset": subset}, options)
