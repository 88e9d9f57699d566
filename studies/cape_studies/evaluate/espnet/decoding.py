"""Decodes utterances one by one, by greedy CTC or by ESPnet's own search."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from espnet2.asr.encoder.conformer_encoder import TooShortUttError
from espnet2.fileio.sound_scp import soundfile_read
from torch import Tensor
from torch.utils.benchmark import timer
from torch.utils.data import DataLoader
from tqdm import tqdm

from cape_studies.evaluate.espnet.models import Model
from cape_studies.evaluate.espnet.options import EspnetOptions
from cape_studies.evaluate.espnet.testset import Utterance, cut

_logger = logging.getLogger(__name__)


def decode(
    model: Model,
    utterances: Sequence[Utterance],
    seconds: float | None,
    options: EspnetOptions,
    title: str = "",
) -> tuple[list[str], float]:
    """The text of each utterance, and the seconds of computing from samples to tokens.

    Args:
        model: on its device.
        utterances: to read.
        seconds: longest duration of a piece; the texts of pieces are joined. None: no pieces.
        options: of the command. With ``--hops`` the first piece is decoded once before the time
            counts.
        title: of the progress.

    Raises:
        ValueError: the model's output is not finite.
    """
    place = torch.device(model.speech2text.device)
    read = partial(_read, model.prepare, seconds)
    loader: Any = DataLoader(utterances, None, num_workers=options.workers, collate_fn=read)  # type: ignore[arg-type]
    texts: list[str] = []
    computing, warm = 0.0, not options.hops
    with (
        torch.inference_mode(),
        torch.autocast(place.type, torch.bfloat16, enabled=options.amp),
        tqdm(loader, title, disable=None, leave=False) as progress,
    ):
        for utterance, pieces in zip(utterances, progress, strict=True):
            parts = []
            for samples in pieces:
                speech = samples[None].to(place)
                if not warm:
                    _tokens(model, speech)
                    warm = True
                began = timer()  # waits for the GPU
                ids = _tokens(model, speech)
                computing += timer() - began
                if ids is None:
                    _logger.warning("%s is too short for a frame: no text", utterance.name)
                parts.append(model.hypothesis(ids or []))
            texts.append(" ".join(filter(None, parts)))
    return texts, computing


def _read(prepare: Any, seconds: float | None, one: Utterance) -> list[Tensor]:
    """The samples of each piece, (N,), after ESPnet's preprocessing."""
    samples, rate = soundfile_read(one.path, "float32")
    pieces = cut(samples, rate, seconds)
    prepared = (prepare(one.name, {"speech": piece})["speech"] for piece in pieces)
    return [torch.from_numpy(piece) for piece in prepared]


def _tokens(model: Model, speech: Tensor) -> list[int] | None:
    """The tokens of audio (1, N), without blanks; None if it has not a single frame."""
    if speech.shape[1] < model.shortest:
        return None
    try:
        if not model.searches:
            return _greedy(model.asr, speech)
        found = model.speech2text(speech[0])
    except TooShortUttError:
        return None
    return (found[0] if isinstance(found, tuple) else found)[0][2]  # intermediate CTC


def _greedy(asr: Any, speech: Tensor) -> list[int]:
    """The likeliest token of each frame, with repeats merged and without blanks.

    asr_inference with a beam of one differs: it sums the alignments of a text.
    """
    out, _ = asr.encode(speech, torch.tensor([speech.shape[1]]))
    (logits,) = asr.ctc.ctc_lo(out[0] if isinstance(out, tuple) else out)  # intermediate CTC
    if not bool(logits.isfinite().all()):
        raise ValueError("the model's output is not finite: did its training diverge?")
    left_out = {asr.blank_id, asr.sos, asr.eos}
    return [i for i in logits.argmax(dim=1).unique_consecutive().tolist() if i not in left_out]
