"""Decodes utterances one by one, by greedy CTC or by ESPnet's own search."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from espnet2.asr.encoder.conformer_encoder import TooShortUttError
from espnet2.fileio.sound_scp import soundfile_read
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from cape_studies.evaluate.espnet.models import Model
from cape_studies.evaluate.espnet.options import EspnetOptions
from cape_studies.evaluate.espnet.testset import Utterance

_logger = logging.getLogger(__name__)


def decode(
    model: Model, utterances: Sequence[Utterance], options: EspnetOptions, title: str = ""
) -> list[str]:
    """The text of each utterance.

    Raises:
        ValueError: the model's output is not finite.
    """
    place = torch.device(model.speech2text.device)
    read = partial(_samples, model)
    loader: Any = DataLoader(utterances, None, num_workers=options.workers, collate_fn=read)  # type: ignore[arg-type]
    texts: list[str] = []
    with (
        torch.inference_mode(),
        torch.autocast(place.type, torch.bfloat16, enabled=options.amp),
        tqdm(loader, title, disable=None, leave=False) as progress,
    ):
        for utterance, speech in zip(utterances, progress, strict=True):
            ids = tokens(model, speech[None].to(place))
            if ids is None:
                _logger.warning("%s is too short for a frame: no text", utterance.name)
            texts.append(model.hypothesis(ids or []))
    return texts


def _samples(model: Model, one: Utterance) -> Tensor:
    """Of an utterance, (N,), after ESPnet's preprocessing."""
    prepared: Any = model.prepare(one.name, {"speech": soundfile_read(one.path, "float32")[0]})
    return torch.from_numpy(prepared["speech"])


def tokens(model: Model, speech: Tensor) -> list[int] | None:
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
