"""Evaluate translation models of fairseq: ``python -m cape_plugins.fairseq.evaluate``.

Section 4.3 of the paper. Any encoder-decoder of fairseq is taken, ours and its own
Transformer alike: names of models are only labels. Three commands:

``cape-fairseq-eval bleu`` translates a test set with fairseq's generator::

    cape-fairseq-eval bleu data-bin --model cape=run/cape sinpos=run/sinpos --from-epoch 50 \\
        --beam 4 --lenpen 0.6 --reference test.de --out bleu

A folder is tested at the checkpoint with the best BLEU on the validation set. Two numbers: BLEU on
tokenised text after BPE has been removed, by the formula of multi-bleu.perl (the paper's), and
sacreBLEU on detokenised text with its signature. Rows are written as they come; ``--resume``
continues an interrupted run.

``cape-fairseq-eval stack`` makes a test set of long sentences out of consecutive ones, 300 target
tokens or more each (the paper's 3003 pairs became 270)::

    cape-fairseq-eval stack --source test.tok.en --target test.tok.de --codes codes \\
        --data data-bin --out data-bin-stacked

``cape-fairseq-eval loss`` scores references by teacher forcing and averages the negative log loss
at each position of the target, in nats, EOS included::

    cape-fairseq-eval loss data-bin-stacked --model cape=run/cape/checkpoint_best.pt \\
        sinpos=run/sinpos/checkpoint_best.pt --trained-to 120 --out loss

Every sentence is counted exactly once, or the command fails.
"""

import argparse
import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from fairseq import utils as fairseq_utils

from cape_plugins.fairseq.evaluate_options import build_parser, check, runtime
from cape_plugins.fairseq.evaluation import (
    bleu,
    checkpoints,
    losses,
    results,
    stacked_data,
    tables,
)
from cape_plugins.fairseq.evaluation.checkpoints import Source
from cape_plugins.fairseq.evaluation.results import BleuRow, LossRow
from cape_plugins.fairseq.evaluation.testset import (
    Runtime,
    check_data,
    check_lengths,
    open_subset,
)
from cape_plugins.plot import canvas, positions_curve
from cape_plugins.results import CsvFile, check_absent


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    parser = build_parser()
    args = parser.parse_args(argv)
    # importing fairseq sets the root logger to INFO or DEBUG
    logging.getLogger().setLevel(logging.WARNING)
    try:
        check(args)
        with warnings.catch_warnings():
            # of pinned memory without a GPU and masks of two types, both in fairseq's calls
            warnings.filterwarnings("ignore", category=UserWarning, module="torch")
            {"bleu": run_bleu, "loss": run_loss, "stack": run_stack}[args.command](args)
    except (ValueError, ImportError) as error:
        message = " ".join(str(error).split())
        parser.exit(2, f"{parser.prog} {args.command}: error: {message}\n")


def run_bleu(args: argparse.Namespace) -> list[BleuRow]:
    """Choose checkpoints and test them; the arguments have passed ``check``.

    Returns:
        the rows of the tests, one for each model.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    csv_path, markdown_path = _outputs(args)
    hint = ", or --resume to continue it"
    check_absent([csv_path], args.overwrite or args.resume, hint)
    check_absent([markdown_path], args.overwrite or args.resume)
    found = checkpoints.sources(args.model, pattern=args.checkpoints, from_epoch=args.from_epoch)
    subsets = [args.gen_subset]
    if any(len(source.candidates) > 1 for source in found):
        subsets.append(args.valid_subset)
    run = runtime(args)
    data = _start(args, subsets)
    references = {args.gen_subset: _reference(args.reference)}
    references.setdefault(args.valid_subset, _reference(args.valid_reference))
    if args.hypotheses:
        files = [_hypotheses(args, source.name) for source in found]
        if len(set(files)) < len(files):
            raise ValueError("--hypotheses needs another NAME for each model")
        check_absent(files, args.overwrite or args.resume)
    for source in found:
        _check_bleu(source, data, subsets, references, run, args)

    known = []
    if args.resume and csv_path is not None and csv_path.exists():
        known = results.read_bleu(csv_path)
    mode = "resume" if args.resume else "overwrite" if args.overwrite else "new"
    csv_file = CsvFile(csv_path, BleuRow, mode)
    tested: list[tuple[BleuRow | None, BleuRow]] = []
    with contextlib.closing(csv_file):

        def evaluate(name: str, path: Path, subset: str) -> BleuRow:
            wanted = _identity(path, data, subset, run, args)
            row = results.find(known, wanted)
            if row is None:
                row = _translate(name, wanted, references[subset], run, args)
                csv_file.add(row)
            row.model = name
            print(tables.bleu_line(row), flush=True)
            return row

        for source in found:
            best, validated = source.candidates[0], None
            if len(source.candidates) > 1:
                rows = [evaluate(source.name, p, args.valid_subset) for p in source.candidates]
                validated = max(rows, key=lambda row: getattr(row, args.select_by))
                best = Path(validated.checkpoint)
            tested.append((validated, evaluate(source.name, best, args.gen_subset)))
    table = tables.bleu_table(tested, args.valid_subset)
    print(f"\n{table}")
    if markdown_path is not None:
        markdown_path.write_text(table, encoding="utf-8")
    return [row for _, row in tested]


def run_loss(args: argparse.Namespace) -> list[LossRow]:
    """Score references by position; the arguments have passed ``check``.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    csv_path, markdown_path = _outputs(args)
    figure = args.figure or (f"{args.out}.png" if args.out else None)
    check_absent([csv_path, markdown_path], args.overwrite)
    if figure:
        canvas.check(Path(figure), args.overwrite)
    found = checkpoints.sources(args.model, only_best=True)
    for source in found:
        if len(source.candidates) > 1:
            raise ValueError(
                f"{source.name} has {len(source.candidates)} checkpoints: give one each "
                "(seeds may share a NAME)"
            )
    run = runtime(args)
    data = _start(args, [args.gen_subset])
    for source in found:
        loaded = checkpoints.load(source.candidates[0], data, max_positions=args.max_positions)
        check_lengths(loaded, open_subset(loaded.task, args.gen_subset, data), run)

    rows: list[LossRow] = []
    table = []
    csv_file = CsvFile(csv_path, LossRow, "overwrite" if args.overwrite else "new")
    with contextlib.closing(csv_file):
        for source in found:
            path = source.candidates[0]
            loaded = checkpoints.load(path, data, max_positions=args.max_positions)
            dataset = open_subset(loaded.task, args.gen_subset, data)
            title = f"{source.name} {args.gen_subset}"
            scored = losses.position_losses(loaded, dataset, run, title)
            table.append((source, scored))
            counted = zip(scored.sums.tolist(), scored.sentences.tolist(), strict=True)
            new = [
                LossRow(source.name, str(path), str(data), args.gen_subset, i, total / n, n)
                for i, (total, n) in enumerate(counted, 1)
            ]
            csv_file.add(*new)
            rows += new
            print(f"{title} · {path} · {scored.mean():.4f} nats, {len(dataset)} sentences")
    text = tables.loss_table(table, args.gen_subset, args.edges)
    print(f"\n{text}")
    if markdown_path is not None:
        markdown_path.write_text(text, encoding="utf-8")
    if figure:
        positions_curve.draw(
            [csv_path],
            Path(figure),
            window=args.window,
            min_sentences=min(args.min_sentences, max(row.sentences for row in rows)),
            trained_to=args.trained_to,
        )
    return rows


def run_stack(args: argparse.Namespace) -> stacked_data.Written:
    """Make a stacked test set; the arguments have passed ``check``.

    Raises:
        ValueError: something does not fit.
    """
    kind = stacked_data.subword_nmt if args.codes else stacked_data.sentencepiece
    cuts = [kind(Path(file)) for file in args.codes or args.sentencepiece]
    with contextlib.redirect_stdout(sys.stderr):  # where fairseq-preprocess may write
        written = stacked_data.write(
            Path(args.source),
            Path(args.target),
            (cuts[0], cuts[-1]),
            Path(args.data),
            Path(args.out),
            min_tokens=args.min_tokens,
            keep_remainder=args.keep_remainder,
            overwrite=args.overwrite,
        )
    tokens = written.stacks.tokens
    print(
        f"{written.folder}: {written.sentences} sentences became {len(tokens)} of {min(tokens)} to "
        f"{max(tokens)} target tokens (mean {sum(tokens) / len(tokens):.1f}); "
        f"{written.stacks.left_off} at the end were left off; "
        f"{100 * written.unknown:.2f} % unknown target tokens"
    )
    if written.unknown > 0.01:
        print(
            "warning: so many unknown tokens mean other BPE codes or another tokeniser than in "
            f"{args.data}",
            file=sys.stderr,
        )
    return written


def _outputs(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    csv_path = args.csv or (args.out and f"{args.out}.csv")
    markdown_path = args.markdown or (args.out and f"{args.out}.md")
    return Path(csv_path) if csv_path else None, Path(markdown_path) if markdown_path else None


def _start(args: argparse.Namespace, subsets: list[str]) -> Path:
    if args.user_dir:
        if not Path(args.user_dir).is_dir():
            raise ValueError(f"--user-dir: no such folder: {args.user_dir}")
        fairseq_utils.import_user_module(argparse.Namespace(user_dir=args.user_dir))
    data = Path(args.data)
    check_data(data, subsets)
    return data


def _reference(path: str | None) -> list[str] | None:
    return None if path is None else stacked_data.read_lines(Path(path))


def _check_bleu(
    source: Source,
    data: Path,
    subsets: Sequence[str],
    references: dict[str, list[str] | None],
    run: Runtime,
    args: argparse.Namespace,
) -> None:
    """Load a model's first checkpoint, to find out before any work whether everything fits."""
    loaded = checkpoints.load(source.candidates[0], data, max_positions=args.max_positions)
    for subset in subsets:
        if subset != args.gen_subset and len(source.candidates) == 1:
            continue
        dataset = open_subset(loaded.task, subset, data)
        check_lengths(loaded, dataset, run)
        bleu.check_max_length(dataset, _search(args))
        lines = references[subset]
        if lines is not None and len(lines) != len(dataset):
            raise ValueError(
                f"the references of {subset!r} have {len(lines)} lines, {data} has "
                f"{len(dataset)} sentences"
            )


def _hypotheses(args: argparse.Namespace, name: str) -> Path:
    return Path(args.hypotheses) / f"{name.replace('/', '_')}.{args.gen_subset}.txt"


def _search(args: argparse.Namespace) -> bleu.Search:
    return bleu.Search(args.beam, args.lenpen, args.max_len_a, args.max_len_b, args.post_process)


def _identity(
    path: Path, data: Path, subset: str, run: Runtime, args: argparse.Namespace
) -> dict[str, object]:
    """The columns of a row that are known before."""
    reference = args.reference if subset == args.gen_subset else args.valid_reference
    plain = "none" if args.post_process == "sentencepiece" else "moses"
    return {
        "checkpoint": str(path),
        "data": str(data),
        "subset": subset,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "max_len_a": args.max_len_a,
        "max_len_b": args.max_len_b,
        "precision": run.precision,
        "post_process": args.post_process,
        "detokenizer": args.detokenizer or plain,
        "reference": reference or "detokenised",
        "modified": path.stat().st_mtime,
    }


def _translate(
    name: str,
    wanted: dict[str, object],
    references: list[str] | None,
    run: Runtime,
    args: argparse.Namespace,
) -> BleuRow:
    path, data, subset = Path(wanted["checkpoint"]), Path(wanted["data"]), wanted["subset"]
    loaded = checkpoints.load(path, data, max_positions=args.max_positions)
    dataset = open_subset(loaded.task, subset, data)
    began = time.monotonic()
    title = f"{name} {path.name} {subset}"
    translations = bleu.translate(loaded, dataset, _search(args), run, title)
    seconds = time.monotonic() - began
    scores = bleu.score(
        translations,
        language=loaded.task.cfg.target_lang,
        raw_references=references,
        detokenizer=wanted["detokenizer"],
    )
    if args.hypotheses and subset == args.gen_subset:
        lines = "".join(f"{t.hypothesis}\n" for t in translations)
        _hypotheses(args, name).write_text(lines, encoding="utf-8")
    return BleuRow(
        model=name,
        epoch=loaded.epoch,
        updates=loaded.updates,
        bleu=scores.bleu,
        brevity_penalty=scores.brevity_penalty,
        length_ratio=scores.length_ratio,
        sacrebleu=scores.sacrebleu,
        signature=scores.signature,
        sentences=len(translations),
        seconds=seconds,
        **wanted,
    )


if __name__ == "__main__":
    main()
