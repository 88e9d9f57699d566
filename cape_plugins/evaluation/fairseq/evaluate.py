"""Evaluate translation models of fairseq: ``cape-fairseq-eval bleu``, ``loss``, ``stack``.

Section 4.3 of the paper. Any encoder-decoder of fairseq is taken, ours and its own Transformer
alike: names of models are only labels. BLEU of test sets, translated by fairseq's generator, at the
checkpoint with the best BLEU on the validation set; the mean negative log loss at each position of
the target; and test sets of long sentences, made of consecutive ones (the paper's 3003 pairs became
270). Every sentence is counted exactly once, or the command fails.
"""

import argparse
import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq import utils as fairseq_utils

from cape_plugins.evaluation import items
from cape_plugins.evaluation.command import one_line_errors
from cape_plugins.evaluation.fairseq import (
    bleu,
    checkpoints,
    losses,
    positions_curve,
    results,
    stacked_data,
)
from cape_plugins.evaluation.fairseq.checkpoints import Loaded, Source
from cape_plugins.evaluation.fairseq.options import (
    BleuOptions,
    LossOptions,
    ModelOptions,
    StackOptions,
)
from cape_plugins.evaluation.fairseq.positions_curve import PositionOptions
from cape_plugins.evaluation.fairseq.results import BleuRow, LossRow
from cape_plugins.evaluation.fairseq.testset import (
    Runtime,
    check_data,
    check_lengths,
    open_subset,
    runtime,
)
from cape_plugins.evaluation.output import CsvFile, check_absent
from cape_plugins.evaluation.table import publish
from cape_plugins.plot import canvas


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    parser = argparse.ArgumentParser(
        prog="cape-fairseq-eval",
        description="BLEU, loss by position and stacked test sets for fairseq's translation "
        "models; COMMAND --help has the options.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (kind, _, help) in COMMANDS.items():
        kind.add_to(commands.add_parser(name, help=help, description=kind.__doc__))
    given = parser.parse_args(argv)
    # importing fairseq sets the root logger to INFO or DEBUG
    logging.getLogger().setLevel(logging.WARNING)
    kind, work, _ = COMMANDS[given.command]
    with one_line_errors(f"{parser.prog} {given.command}"), warnings.catch_warnings():
        # of pinned memory without a GPU and masks of two types, both in fairseq's calls
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        work(kind.read(given))


def run_bleu(options: BleuOptions) -> list[BleuRow]:
    """Choose checkpoints and test them.

    Returns:
        the rows of the tests, one for each model.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    kept = options.overwrite or options.resume
    check_absent([options.csv_path], kept, ", or --resume to continue it")
    check_absent([options.markdown_path, options.items], kept)
    found = checkpoints.sources(
        options.model, pattern=options.checkpoints, from_epoch=options.from_epoch
    )
    found = _each_logn(found, options)
    subsets = [options.gen_subset]
    if any(len(source.candidates) > 1 for source in found):
        subsets.append(options.valid_subset)
    run = _start(options, subsets)
    references = {
        subset: _lines(options.reference_of(subset))
        for subset in (options.gen_subset, options.valid_subset)
    }
    files = [options.hypotheses_of(source.name) for source in found]
    if options.hypotheses and len(set(files)) < len(files):
        raise ValueError("--hypotheses needs another NAME for each model")
    check_absent(files, kept)
    for source in found:
        _check_bleu(source, references, run, options)

    known = results.read_bleu(options.csv_path) if options.resume else []
    tested: list[tuple[BleuRow | None, BleuRow]] = []
    with CsvFile(options.csv_path, BleuRow, options.overwrite, options.resume) as csv_file:

        def evaluate(
            source: Source, path: Path, subset: str, valid_bleu: float | None = None
        ) -> BleuRow:
            wanted = _identity(source, path, subset, run, options)
            row = results.find(known, wanted)
            if row is None:
                row = _translate(source.name, wanted, references[subset], run, options)
                row.valid_bleu = valid_bleu
                csv_file.add(row)
            row.model = source.name
            print(results.bleu_line(row), flush=True)
            return row

        for source in found:
            best, validated = source.candidates[0], None
            if len(source.candidates) > 1:
                rows = [evaluate(source, p, options.valid_subset) for p in source.candidates]
                validated = max(rows, key=lambda row: getattr(row, options.select_by))
                best = Path(validated.checkpoint)
            valid_bleu = validated.bleu if validated else None
            tested.append((validated, evaluate(source, best, options.gen_subset, valid_bleu)))
    publish(results.bleu_table(tested, options.valid_subset), options.markdown_path)
    return [row for _, row in tested]


def run_loss(options: LossOptions) -> list[LossRow]:
    """Score references by position.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    csv_path, figure_path = options.csv_path, options.figure_path
    check_absent([csv_path, options.markdown_path, options.items], options.overwrite)
    if figure_path is not None:
        canvas.check(figure_path, options.overwrite)
    found = checkpoints.sources(options.model, only_best=True)
    for source in found:
        if len(source.candidates) > 1:
            raise ValueError(
                f"{source.name} has {len(source.candidates)} checkpoints: give one each "
                "(seeds may share a NAME)"
            )
    run = _start(options, [options.gen_subset])
    found = _each_logn(found, options)

    for source in found:
        path, logn = source.candidates[0], source.attention_logn
        check_lengths(*_open(path, logn, options.gen_subset, options), run)

    rows: list[LossRow] = []
    table = []
    with CsvFile(csv_path, LossRow, options.overwrite) as csv_file:
        for source in found:
            (path,), title = source.candidates, f"{source.name} {options.gen_subset}"
            loaded, dataset = _open(path, source.attention_logn, options.gen_subset, options)
            scored = losses.position_losses(loaded, dataset, run, title)
            table.append((source, scored))
            counted = zip(scored.sums.tolist(), scored.sentences.tolist(), strict=True)
            about = source.name, str(path), str(options.data), options.gen_subset
            new = [LossRow(*about, i, total / n, n) for i, (total, n) in enumerate(counted, 1)]
            csv_file.add(*new)
            rows += new
            print(f"{title} · {path} · {scored.mean():.4f} nats, {len(dataset)} sentences")
    publish(results.loss_table(table, options.gen_subset, options.edges), options.markdown_path)
    if options.items is not None:
        of = zip(rows, table[0][1].items(), strict=True)
        items.write(options.items, ("subset", "position"), items.RATIO, of)
    if figure_path is not None and csv_path is not None:
        least = min(options.min_sentences, max(row.sentences for row in rows))
        drawn = PositionOptions(
            csv=[csv_path],
            out=figure_path,
            window=options.window,
            min_sentences=least,
            trained_to=options.trained_to,
        )
        positions_curve.draw(drawn)
    return rows


def run_stack(options: StackOptions) -> None:
    """Make a stacked test set.

    Raises:
        ValueError: something does not fit.
    """
    kind = stacked_data.subword_nmt if options.codes else stacked_data.sentencepiece
    cuts = [kind(file) for file in options.codes or options.sentencepiece]
    with contextlib.redirect_stdout(sys.stderr):  # where fairseq-preprocess may write
        stacks, sentences, unknown = stacked_data.write(options, (cuts[0], cuts[-1]))
    tokens = stacks.tokens
    print(
        f"{options.out}: {sentences} sentences became {len(tokens)} of {min(tokens)} to "
        f"{max(tokens)} target tokens (mean {sum(tokens) / len(tokens):.1f}); "
        f"{stacks.left_off} at the end were left off; "
        f"{100 * unknown:.2f} % unknown target tokens"
    )
    if unknown > 0.01:
        print(
            "warning: so many unknown tokens mean other BPE codes or another tokeniser than in "
            f"{options.data}",
            file=sys.stderr,
        )


COMMANDS: dict[str, tuple[type[Any], Any, str]] = {
    "bleu": (
        *(BleuOptions, run_bleu),
        "BLEU; of a folder, that of the checkpoint with the best validation BLEU",
    ),
    "loss": (LossOptions, run_loss, "mean negative log loss at each position of the target"),
    "stack": (StackOptions, run_stack, "make a test set of long sentences out of consecutive ones"),
}


def _start(options: ModelOptions, subsets: list[str]) -> Runtime:
    if options.user_dir is not None:
        fairseq_utils.import_user_module(argparse.Namespace(user_dir=str(options.user_dir)))
    check_data(options.data, subsets)
    return runtime(options)


def _each_logn(found: Sequence[Source], options: ModelOptions) -> list[Source]:
    """The sources under each of ``--attention-logn``, with a name of its own."""
    return [
        replace(source, name=label, attention_logn=logn)
        for source in found
        for label, logn in options.labels(source.name).items()
    ]


def _load(path: Path, logn: int | None, options: ModelOptions) -> Loaded:
    limit = options.max_positions
    return checkpoints.load(path, options.data, max_positions=limit, attention_logn=logn)


def _open(path: Path, logn: int | None, subset: str, options: ModelOptions) -> tuple[Loaded, Any]:
    loaded = _load(path, logn, options)
    return loaded, open_subset(loaded.task, subset, options.data)


def _lines(path: Path | None) -> list[str] | None:
    return None if path is None else stacked_data.read_lines(path)


def _check_bleu(
    source: Source, references: dict[str, list[str] | None], run: Runtime, options: BleuOptions
) -> None:
    """Find out before any work whether a model's first checkpoint and the subsets fit."""
    loaded = _load(source.candidates[0], source.attention_logn, options)
    for subset, lines in references.items():
        if subset != options.gen_subset and len(source.candidates) == 1:
            continue
        dataset = open_subset(loaded.task, subset, options.data)
        check_lengths(loaded, dataset, run)
        bleu.check_max_length(dataset, options)
        if lines is not None and len(lines) != len(dataset):
            raise ValueError(
                f"the references of {subset!r} have {len(lines)} lines, {options.data} has "
                f"{len(dataset)} sentences"
            )


def _identity(
    source: Source, path: Path, subset: str, run: Runtime, options: BleuOptions
) -> dict[str, Any]:
    """The columns that a translation depends on: all alike, an interrupted run's row is taken."""
    reference = options.reference_of(subset)
    plain = "none" if options.post_process == "sentencepiece" else "moses"
    return {
        "checkpoint": str(path),
        "attention_logn": source.attention_logn,
        "data": str(options.data),
        "subset": subset,
        "beam": options.beam,
        "lenpen": options.lenpen,
        "max_len_a": options.max_len_a,
        "max_len_b": options.max_len_b,
        "precision": run.precision,
        "post_process": options.post_process,
        "detokenizer": options.detokenizer or plain,
        "reference": "detokenised" if reference is None else str(reference),
        "modified": path.stat().st_mtime,
    }


def _translate(
    name: str,
    wanted: dict[str, Any],
    references: list[str] | None,
    run: Runtime,
    options: BleuOptions,
) -> BleuRow:
    path, subset = Path(wanted["checkpoint"]), wanted["subset"]
    loaded, dataset = _open(path, wanted["attention_logn"], subset, options)
    began = time.monotonic()
    title = f"{name} {path.name} {subset}"
    translations = bleu.translate(loaded, dataset, options, run, title)
    seconds = time.monotonic() - began
    compared = bleu.compared(
        translations, loaded.task.cfg.target_lang, references, wanted["detokenizer"]
    )
    file = options.hypotheses_of(name)
    if file is not None and subset == options.gen_subset:
        file.write_text("".join(f"{t.hypothesis}\n" for t in translations), encoding="utf-8")
    row = BleuRow(
        model=name,
        epoch=loaded.epoch,
        updates=loaded.updates,
        sentences=len(translations),
        seconds=seconds,
        **wanted,
        **bleu.score(compared),
    )
    if options.items is not None and subset == options.gen_subset:
        items.write(options.items, ("subset",), items.BLEU, [(row, bleu.items(compared))])
    return row
