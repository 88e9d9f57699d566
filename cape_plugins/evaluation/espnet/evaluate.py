"""WER and CER of ESPnet's ASR models by duration: ``cape-espnet-eval``.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2: greedy CTC decoding without a language
model, WER for durations below 10 s, 10 – 15, 15 – 20 and from 20 s on, the same audio in pieces of
10 … 45 s, and WER against throughput over the hop. Any model of ``espnet2.bin.asr_train`` with a
CTC is taken.
"""

import itertools
import logging
import warnings
from collections.abc import Iterator, Sequence

import torch

from cape_plugins.espnet.layers import use_logn
from cape_plugins.evaluation import command, items
from cape_plugins.evaluation.device import open_device
from cape_plugins.evaluation.espnet import (
    checkpoints,
    figures,
    frontends,
    results,
    scoring,
    segments,
    testset,
)
from cape_plugins.evaluation.espnet.checkpoints import Loaded
from cape_plugins.evaluation.espnet.decoding import Runtime, decode
from cape_plugins.evaluation.espnet.options import EXAMPLES, EspnetOptions
from cape_plugins.evaluation.espnet.results import Row, Text
from cape_plugins.evaluation.espnet.segments import Piece
from cape_plugins.evaluation.espnet.testset import TestSet
from cape_plugins.evaluation.output import CsvFile, check_absent
from cape_plugins.evaluation.table import publish
from cape_plugins.plot import canvas

_logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # ESPnet's model calls an old name of autocast in every batch
    warnings.filterwarnings("ignore", category=FutureWarning, module="espnet2")
    command.main("cape-espnet-eval", EspnetOptions, run, argv, examples=EXAMPLES)


def run(options: EspnetOptions) -> list[Row]:
    """Evaluate.

    Returns:
        the rows, as printed and written.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    check_absent([options.csv_path, options.markdown_path, options.items], options.overwrite)
    pictures = figures.outputs(options)
    for path in pictures.values():
        canvas.check(path, options.overwrite)
    runtime = Runtime(
        open_device(options.device),
        getattr(torch, options.amp_dtype) if options.amp else None,
        options.batch_seconds,
        options.batch_size,
        options.padding,
        options.workers,
    )
    sources = checkpoints.sources(options.model, options.checkpoint_name)
    check_hypotheses(options, [label for one in sources for label in options.labels(one.name)])
    sets = testset.open_sets(options.data)
    models = [checkpoints.load(source, options.search) for source in sources]
    for loaded in models:
        check_fit(loaded, sets, options)
    cuts = {
        (one.name, length): segments.cut(one.utterances, length, options.segment_slack)
        for one in sets
        for length in options.lengths
    }

    if options.hypotheses is not None:
        options.hypotheses.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    compared: list[Sequence[Text]] = []
    with CsvFile(options.csv_path, Row, options.overwrite) as csv_file:
        for loaded in models:
            for row, texts in evaluate(loaded, sets, cuts, runtime, options):
                rows.append(row)
                compared.append(texts)
                csv_file.add(row)
                print(results.line(row), flush=True)
    publish(results.markdown(rows), options.markdown_path)
    if options.items is not None:
        found = zip(rows, map(results.items, compared), strict=True)
        items.write(options.items, results.TOLD, items.RATIO, found)
    for kind, path in pictures.items():
        figures.draw(kind, rows, path)
    return rows


def check_fit(loaded: Loaded, sets: Sequence[TestSet], options: EspnetOptions) -> None:
    """Find out before any work whether a model can be tested on the sets.

    Raises:
        ValueError: the audio has another sampling rate, a hop is out of range, or no token of
            the transcripts is in the model's list.
    """
    name = loaded.source.name
    try:
        for hop in options.hops:
            frontends.hop_samples(loaded.model, hop)
        for logn in options.attention_logn:
            use_logn(loaded.model.encoder, logn)
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


def check_hypotheses(options: EspnetOptions, models: Sequence[str]) -> None:
    """Raise ValueError if a file of hypotheses is there (without ``--overwrite``)."""
    names = [testset.split_name(one, "--data")[0] for one in options.data]
    for condition in itertools.product(models, names, options.lengths, options.frame_hops):
        path = options.hypotheses_of(*condition)
        if path is not None and path.exists() and not options.overwrite:
            raise ValueError(f"{path} exists: choose another folder or give --overwrite")


def evaluate(
    loaded: Loaded,
    sets: Sequence[TestSet],
    cuts: dict[tuple[str, float | None], list[Piece]],
    runtime: Runtime,
    options: EspnetOptions,
) -> Iterator[tuple[Row, list[Text]]]:
    """Test one model under all conditions.

    Args:
        loaded: the model; moved to the device while it is tested.
        sets: the test sets.
        cuts: (name of a test set, seconds of ``--segment``) → its pieces.
        runtime: where to run.
        options: the conditions, and where hypotheses go.

    Returns:
        the rows, each with the texts that it counts.
    """
    model = loaded.model.to(runtime.device)
    own_hop = frontends.hop_of(model)
    for label, logn in options.labels(loaded.source.name).items():
        if logn is not None:
            use_logn(model.encoder, logn)
        for hop in options.frame_hops:
            if hop is not None:
                frontends.set_hop(model, frontends.hop_samples(model, hop))
            for test_set in sets:
                for length in options.lengths:
                    row = Row(label, str(loaded.source.file), test_set.name, length, hop)
                    pieces = cuts[test_set.name, length]
                    yield from _test(row, loaded, test_set, pieces, runtime, options)
    if own_hop is not None:
        frontends.set_hop(model, own_hop)
    loaded.model.cpu()


def _test(
    row: Row,
    loaded: Loaded,
    test_set: TestSet,
    pieces: Sequence[Piece],
    runtime: Runtime,
    options: EspnetOptions,
) -> Iterator[tuple[Row, list[Text]]]:
    """The row with what was found in the whole test set, then one for each bin."""
    utterances = test_set.utterances
    found = decode(
        *(loaded.model, utterances, pieces, runtime),
        prepare=loaded.prepare,
        search=loaded.search,
        warm_up=options.timed,
        title=f"{row.model} {test_set.name}",
    )
    if found.too_short:
        _logger.warning(
            "%d of %d in %s are too short for a single frame, such as %s: nothing is recognised",
            *(len(found.too_short), len(pieces), test_set.name),
            utterances[pieces[found.too_short[0]].utterance].name,
        )
    texts = joined(
        len(utterances), pieces, [loaded.transcripts.hypothesis(ids) for ids in found.ids]
    )
    path = options.hypotheses_of(row.model, row.test_set, row.segment, row.hop_ms)
    if path is not None:
        lines = [f"{u.name} {text}".rstrip() for u, text in zip(utterances, texts, strict=True)]
        path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")

    bins = [scoring.bin_of(utterance.seconds, options.bins) for utterance in utterances]
    chosen = {"all": dict.fromkeys(range(len(utterances)))}
    for number, label in enumerate(scoring.labels(options.bins)):
        chosen[label] = dict.fromkeys(i for i, one in enumerate(bins) if one == number)
    references = [loaded.transcripts.reference(utterance.text) for utterance in utterances]
    for label, inside in chosen.items():
        if not inside:
            continue
        mine = [Text(utterances[i].name, references[i], texts[i]) for i in inside]
        counted = results.counted(row, label, mine)
        counted.pieces = sum(piece.utterance in inside for piece in pieces)
        counted.too_short = sum(pieces[i].utterance in inside for i in found.too_short)
        counted.seconds = sum(utterances[i].seconds for i in inside)
        if label == "all":
            counted.decode_seconds = found.seconds
            if options.timed and found.seconds > 0:
                counted.throughput = counted.seconds / found.seconds
        yield counted, mine


def joined(count: int, pieces: Sequence[Piece], texts: Sequence[str]) -> list[str]:
    """The texts of each utterance's pieces in the order of time, with a space between them."""
    parts: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for piece, text in zip(pieces, texts, strict=True):
        parts[piece.utterance].append((piece.start, text))
    return [" ".join(text for _, text in sorted(part) if text) for part in parts]
