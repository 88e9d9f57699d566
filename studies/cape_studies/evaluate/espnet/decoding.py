"""Decodes pieces of audio one by one, by greedy CTC or by ESPnet's own search."""

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
from cape_studies.evaluate.espnet.testset import Piece, Utterance

Ids = list[int] | None  # tokens without blanks; None if there is not a single frame


def decode(
    model: Model,
    utterances: Sequence[Utterance],
    pieces: Sequence[Piece],
    options: EspnetOptions,
    title: str = "",
) -> tuple[list[Ids], float]:
    """The tokens of each piece, and the seconds of computing from samples to tokens.

    With ``--hops`` the first piece is decoded once before the time counts.

    Raises:
        ValueError: the model's output is not finite.
    """
    place = torch.device(model.speech2text.device)
    recognise = _searched if model.searches else _greedy
    read = partial(_read, model.prepare, utterances)
    loader: Any = DataLoader(pieces, None, num_workers=options.workers, collate_fn=read)  # type: ignore[arg-type]
    found: list[Ids] = []
    seconds, warm = 0.0, not options.hops
    with (
        torch.inference_mode(),
        torch.autocast(place.type, torch.bfloat16, enabled=options.amp),
    ):
        for samples in tqdm(loader, title, disable=None, leave=False):
            if len(samples) < model.shortest:
                found.append(None)
                continue
            speech = samples[None].to(place)
            if not warm:
                recognise(model, speech)
                warm = True
            began = timer()  # waits for the GPU
            found.append(recognise(model, speech))
            seconds += timer() - began
    return found, seconds


def _read(prepare: Any, utterances: Sequence[Utterance], piece: Piece) -> Tensor:
    """The samples of a piece, (N,), after ESPnet's preprocessing."""
    one = utterances[piece.utterance]
    samples, _ = soundfile_read(one.path, "float32", start=piece.start, end=piece.end)
    return torch.from_numpy(prepare(one.name, {"speech": samples})["speech"])


def _greedy(model: Model, speech: Tensor) -> Ids:
    """The likeliest token of each frame, with repeats merged and without blanks.

    asr_inference with a beam of one differs: it sums the alignments of a text.
    """
    asr = model.asr
    try:
        out, _ = asr.encode(speech, torch.tensor([speech.shape[1]]))
    except TooShortUttError:
        return None
    (logits,) = asr.ctc.ctc_lo(out[0] if isinstance(out, tuple) else out)  # intermediate CTC
    if not bool(logits.isfinite().all()):
        raise ValueError("the model's output is not finite: did its training diverge?")
    left_out = {asr.blank_id, asr.sos, asr.eos}
    return [i for i in logits.argmax(dim=1).unique_consecutive().tolist() if i not in left_out]


def _searched(model: Model, speech: Tensor) -> Ids:
    """The tokens by asr_inference's search."""
    try:
        found = model.speech2text(speech[0])
    except TooShortUttError:
        return None
    return (found[0] if isinstance(found, tuple) else found)[0][2]  # intermediate CTC
