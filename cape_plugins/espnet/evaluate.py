"""WER and CER of ESPnet's ASR models by duration: ``python -m cape_plugins.espnet.evaluate``.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2: greedy CTC decoding without a language
model, WER for durations below 10 s, 10 – 15, 15 – 20 and from 20 s on, the same audio in pieces of
10 … 45 s, and WER against throughput over the hop. Any model of ``espnet2.bin.asr_train`` with a
CTC is taken. The command line is in :mod:`cape_plugins.espnet.evaluate_options`.
"""

import argparse
import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from cape_plugins.espnet.evaluate_options import build_parser, check
from cape_plugins.espnet.evaluation import (
    checkpoints,
    figures,
    frontends,
    results,
    scoring,
    segments,
    testset,
)
from cape_plugins.espnet.evaluation.checkpoints import Loaded
from cape_plugins.espnet.evaluation.decoding import Runtime, decode
from cape_plugins.espnet.evaluation.results import Row
from cape_plugins.espnet.evaluation.segments import Piece
from cape_plugins.espnet.evaluation.testset import TestSet
from cape_plugins.plot import canvas
from cape_plugins.results import CsvFile, check_absent

_logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    parser = build_parser()
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # ESPnet's model calls an old name of autocast in every batch
    warnings.filterwarnings("ignore", category=FutureWarning, module="espnet2")
    try:
        check(args)
        run(args)
    except (ValueError, ImportError) as error:
        message = " ".join(str(error).split())
        parser.exit(2, f"{parser.prog}: error: {message}\n")


def run(args: argparse.Namespace) -> list[Row]:
    """Evaluate; the arguments have passed :func:`check`.

    Returns:
        the rows, as printed and written.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    csv_path, markdown_path, pictures = outputs(args)
    check_absent([csv_path, markdown_path], args.overwrite)
    for path in pictures.values():
        canvas.check(path, args.overwrite)
    runtime = start(args)
    sources = checkpoints.sources(args.model, args.checkpoint_name)
    if args.hypotheses:
        check_hypotheses(args, [source.name for source in sources])
    sets = testset.open_sets(args.data)
    models = [checkpoints.load(source) for source in sources]
    for note in [note for one in sets for note in one.notes]:
        _logger.warning("%s", note)
    for loaded in models:
        check_fit(loaded, sets, args)
    cuts = {
        (one.name, seconds): segments.whole(one.utterances)
        if seconds is None
        else segments.cut(one.utterances, seconds, args.segment_slack)
        for one in sets
        for seconds in args.segment
    }

    if args.hypotheses:
        Path(args.hypotheses).mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    csv_file = CsvFile(csv_path, Row, "overwrite" if args.overwrite else "new")
    with contextlib.closing(csv_file):
        for loaded in models:
            for row in evaluate(loaded, sets, cuts, runtime, args):
                rows.append(row)
                csv_file.add(row)
                print(results.line(row), flush=True)
    table = results.markdown(rows)
    print(f"\n{table}")
    if markdown_path is not None:
        markdown_path.write_text(table, encoding="utf-8")
    for kind, path in pictures.items():
        figures.draw(kind, rows, path)
    return rows


def outputs(args: argparse.Namespace) -> tuple[Path | None, Path | None, dict[str, Path]]:
    """Where the CSV, the Markdown and the pictures go."""
    if args.out is None:
        return None, None, {}
    kinds = figures.kinds(
        bins=len(args.bins),
        sets=len(args.data),
        segments=len(args.segment),
        hops=args.hops != [None],
    )
    pictures = {} if args.no_plots else {kind: Path(f"{args.out}.{kind}.png") for kind in kinds}
    return Path(f"{args.out}.csv"), Path(f"{args.out}.md"), pictures


def start(args: argparse.Namespace) -> Runtime:
    """The device and how to use it."""
    name = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used: {reason}") from error
    return Runtime(
        device,
        getattr(torch, args.amp_dtype) if args.amp else None,
        args.batch_seconds,
        args.batch_size,
        args.padding,
        args.workers,
    )


def check_fit(loaded: Loaded, sets: Sequence[TestSet], args: argparse.Namespace) -> None:
    """Find out before any work whether a model can be tested on the sets.

    Raises:
        ValueError: the audio has another sampling rate, a hop is out of range, or no token of
            the transcripts is in the model's list.
    """
    name = loaded.source.name
    try:
        for hop in args.hops:
            if hop is not None:
                frontends.hop_samples(loaded.model, hop)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    for test_set in sets:
        rate = test_set.utterances[0].rate
        if loaded.rate is None:
            _logger.warning("%s does not tell its sampling rate: is it %d Hz?", name, rate)
        elif rate != loaded.rate:
            raise ValueError(
                f"{test_set.name} has audio at {rate} Hz, {name} was trained at {loaded.rate} Hz: "
                "resample the audio"
            )
        _check_tokens(loaded, test_set)


def _check_tokens(loaded: Loaded, test_set: TestSet) -> None:
    total, unknown = 0, []
    for utterance in test_set.utterances:
        count, missing = loaded.transcripts.unknown(utterance.text)
        total += count
        unknown += missing
    if not unknown:
        return
    examples = ", ".join(repr(token) for token in list(dict.fromkeys(unknown))[:5])
    what = (
        f"{len(unknown)} of {total} tokens in the transcripts of {test_set.name} are not in the "
        f"token list of {loaded.source.name}, such as {examples}"
    )
    if len(unknown) == total:
        raise ValueError(f"{what}: other words, or upper case against lower case?")
    _logger.warning("%s: they count as errors", what)


def hypothesis_path(
    args: argparse.Namespace, model: str, test_set: str, segment: float | None, hop: float | None
) -> Path:
    """The file that what was recognised under a condition is written to."""
    parts = [model, test_set]
    parts += [] if segment is None else [f"{segment:g}s"]
    parts += [] if hop is None else [f"{hop:g}ms"]
    return Path(args.hypotheses) / (".".join(parts).replace("/", "_") + ".txt")


def check_hypotheses(args: argparse.Namespace, models: Sequence[str]) -> None:
    """Raise ValueError if a file of hypotheses is there (without ``--overwrite``)."""
    names = [testset.split_name(one)[0] for one in args.data]
    paths = [
        hypothesis_path(args, model, name, segment, hop)
        for model in models
        for name in names
        for segment in args.segment
        for hop in args.hops
    ]
    for path in paths:
        if path.exists() and not args.overwrite:
            raise ValueError(f"{path} exists: choose another folder or give --overwrite")


def evaluate(
    loaded: Loaded,
    sets: Sequence[TestSet],
    cuts: dict[tuple[str, float | None], list[Piece]],
    runtime: Runtime,
    args: argparse.Namespace,
) -> Iterator[Row]:
    """Test one model under all conditions.

    Args:
        loaded: the model; moved to the device while it is tested.
        sets: the test sets.
        cuts: (name of a test set, seconds of ``--segment``) → its pieces.
        runtime: where to run.
        args: ``hops``, ``segment``, ``bins``, ``throughput`` and ``hypotheses``.
    """
    model = loaded.model.to(runtime.device)
    own_hop = frontends.hop_of(model)
    for hop in args.hops:
        if hop is not None:
            frontends.set_hop(model, frontends.hop_samples(model, hop))
        for test_set in sets:
            for segment in args.segment:
                yield from _test(
                    loaded, test_set, cuts[test_set.name, segment], runtime, args, segment, hop
                )
    if own_hop is not None:
        frontends.set_hop(model, own_hop)
    loaded.model.cpu()


def _test(
    loaded: Loaded,
    test_set: TestSet,
    pieces: Sequence[Piece],
    runtime: Runtime,
    args: argparse.Namespace,
    segment: float | None,
    hop: float | None,
) -> Iterator[Row]:
    utterances = test_set.utterances
    found = decode(
        *(loaded.model, utterances, pieces, runtime),
        prepare=loaded.prepare,
        warm_up=args.throughput,
        title=f"{loaded.source.name} {test_set.name}",
    )
    if found.too_short:
        names = [utterances[pieces[i].utterance].name for i in found.too_short]
        _logger.warning(
            "%d of %d in %s are too short for a single frame, such as %s: nothing is recognised",
            *(len(names), len(pieces), test_set.name, names[0]),
        )
    texts = joined(
        len(utterances), pieces, [loaded.transcripts.hypothesis(ids) for ids in found.ids]
    )
    if args.hypotheses:
        lines = [f"{u.name} {text}".rstrip() for u, text in zip(utterances, texts, strict=True)]
        path = hypothesis_path(args, loaded.source.name, test_set.name, segment, hop)
        path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")

    names = ["all", *scoring.labels(args.bins)]
    bins = [1 + scoring.bin_of(utterance.seconds, args.bins) for utterance in utterances]
    for number, name in enumerate(names):
        chosen = [i for i in range(len(utterances)) if number in (0, bins[i])]
        if not chosen:
            continue
        row = _scored(
            Row(loaded.source.name, str(loaded.source.file), test_set.name, segment, hop, name),
            [loaded.transcripts.reference(utterances[i].text) for i in chosen],
            [texts[i] for i in chosen],
        )
        inside = set(chosen)
        row.pieces = sum(piece.utterance in inside for piece in pieces)
        row.too_short = sum(pieces[i].utterance in inside for i in found.too_short)
        row.seconds = sum(utterances[i].seconds for i in chosen)
        if name == "all":
            row.decode_seconds = found.seconds
            if args.throughput and found.seconds > 0:
                row.throughput = row.seconds / found.seconds
        yield row


def joined(count: int, pieces: Sequence[Piece], texts: Sequence[str]) -> list[str]:
    """The texts of each utterance's pieces in the order of time, with a space between them."""
    parts: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for piece, text in zip(pieces, texts, strict=True):
        parts[piece.utterance].append((piece.start, text))
    return [" ".join(text for _, text in sorted(part) if text) for part in parts]


def _scored(row: Row, references: Sequence[str], hypotheses: Sequence[str]) -> Row:
    words = scoring.word_errors(references, hypotheses)
    characters = scoring.character_errors(references, hypotheses)
    row.utterances = len(references)
    row.words, row.wer = words.units, words.rate
    row.substitutions, row.deletions = words.substitutions, words.deletions
    row.insertions = words.insertions
    row.characters, row.cer = characters.units, characters.rate
    return row


if __name__ == "__main__":
    main()
