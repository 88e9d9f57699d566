"""Decodes utterances one by one, by greedy CTC or by ESPnet's own search."""

import logging
from collections.abc import Mapping
from typing import Any

import soundfile
import torch
from espnet2.asr.encoder.conformer_encoder import TooShortUttError
from torch import Tensor
from tqdm import tqdm

from cape_studies.data.recordings import Utterance
from cape_studies.evaluate.espnet.models import Model
from cape_studies.evaluate.espnet.options import EspnetOptions

_logger = logging.getLogger(__name__)


def decode(
    model: Model, utterances: Mapping[str, Utterance], options: EspnetOptions, title: str = ""
) -> list[str]:
    """The text of each utterance.

    Raises:
        ValueError: the model's output is not finite.
    """
    kind = torch.device(model.speech2text.device).type
    texts: list[str] = []
    with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=options.amp):
        for name, one in tqdm(utterances.items(), title, disable=None, leave=False):
            ids = tokens(model, model.heard(name, soundfile.read(one.path, dtype="float32")[0]))
            if ids is None:
                _logger.warning("%s is too short for a frame: no text", name)
            texts.append(model.hypothesis(ids or []))
    return texts


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
