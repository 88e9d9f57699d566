"""A stacked test set as fairseq reads it: segmented text and a folder of binarised data."""

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq import options
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair

from cape_plugins.evaluation.fairseq.options import StackOptions
from cape_plugins.evaluation.fairseq.stacking import Stacks, stack
from cape_plugins.evaluation.fairseq.testset import dictionary_path

Segment = Callable[[str], str]


def subword_nmt(codes: Path) -> Segment:
    """BPE with a codes file of subword-nmt.

    Raises:
        ValueError: the file is missing or is none.
    """
    from subword_nmt.apply_bpe import BPE

    try:
        with codes.open(encoding="utf-8") as file:
            bpe = BPE(file)
    except (OSError, UnicodeDecodeError, SystemExit, ValueError, IndexError) as error:
        # subword-nmt exits on a line that is no pair
        raise ValueError(f"{codes} is no codes file of subword-nmt: {error}") from error
    return lambda line: bpe.process_line(line).strip()


def sentencepiece(model: Path) -> Segment:
    """Pieces of a sentencepiece model.

    Raises:
        ImportError: sentencepiece is missing.
        ValueError: the file is missing or is no model.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ImportError(
            f"--sentencepiece needs it ({error}): pip install sentencepiece"
        ) from error
    try:
        processor = SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{model} is no model of sentencepiece: {error}") from error
    return lambda line: " ".join(processor.encode(line, out_type=str))


def write(options: StackOptions, segment: tuple[Segment, Segment]) -> tuple[Stacks, int, float]:
    """Stack a test set, segment it and binarise it with fairseq-preprocess.

    Args:
        options: the text before BPE, one sentence a line; the data with the dictionaries and the
            pair of languages; the folder to make, which gets ``test.*``, the dictionaries, and the
            text as ``stacked.LANG`` (before BPE) and ``stacked.bpe.LANG``.
        segment: BPE of source and target.

    Returns:
        the sentence pairs, how many sentences went in, and the share of target tokens that the
        dictionary does not have.

    Raises:
        ValueError: a file is missing or does not fit, or the folder is there.
    """
    data, folder = options.data, options.out
    languages = [one for one in infer_language_pair(str(data)) if one] if data.is_dir() else []
    if len(languages) < 2:
        raise ValueError(f"{data} holds no binarised data")
    for language in languages:
        if not dictionary_path(data, language).is_file():
            raise ValueError(f"no dictionary {dictionary_path(data, language)}")
    lines = read_lines(options.source), read_lines(options.target)
    stacks = stack(
        *lines,
        lambda sentence: len(segment[1](sentence).split()),
        min_tokens=options.min_tokens,
        keep_remainder=options.keep_remainder,
    )
    _make_folder(folder, options.overwrite)
    unknown = 0.0
    for side, (language, cut) in enumerate(zip(languages, segment, strict=True)):
        text = [pair[side] for pair in stacks.pairs]
        pieces = [cut(line) for line in text]
        _write_lines(folder / f"stacked.{language}", text)
        _write_lines(folder / f"stacked.bpe.{language}", pieces)
        unknown = _unknown(pieces, dictionary_path(data, language))
    _binarise(languages, data, folder)
    return stacks, len(lines[0]), unknown


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, split at newlines alone.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return text.removesuffix("\n").split("\n") if text else []


def _make_folder(folder: Path, overwrite: bool) -> None:
    if folder.exists():
        if not overwrite:
            raise ValueError(f"{folder} exists: choose another name or give --overwrite")
        if not any(folder.glob("stacked.bpe.*")):
            raise ValueError(
                f"{folder} was not made by cape-fairseq-eval stack: remove it yourself"
            )
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made: {error}") from error


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _unknown(lines: Sequence[str], path: Path) -> float:
    dictionary = Dictionary.load(str(path))
    pieces = [piece for line in lines for piece in line.split()]
    return sum(dictionary.index(piece) == dictionary.unk() for piece in pieces) / len(pieces)


def _binarise(languages: Sequence[str], data: Path, folder: Path) -> None:
    from fairseq_cli import preprocess

    source, target = languages
    arguments = [
        *("--source-lang", source, "--target-lang", target),
        *("--testpref", str(folder / "stacked.bpe"), "--destdir", str(folder)),
        *("--srcdict", str(dictionary_path(data, source))),
        *("--tgtdict", str(dictionary_path(data, target))),
    ]
    logger = logging.getLogger("fairseq_cli.preprocess")
    before = logger.level, logger.propagate, list(logger.handlers)
    # its log goes into the folder alone
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    finally:
        for handler in set(logger.handlers) - set(before[2]):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]
