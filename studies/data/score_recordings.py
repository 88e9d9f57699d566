"""Error rates of ESPnet's models at other hops, or of recordings cut into pieces: an evaluation.

    python studies/data/score_recordings.py --model exp/cape --data data/test --hops 5 10 20 \\
        --csv scores.csv --items items.csv

Greedy CTC decoding, as section 4.2 of the paper. A hop is in ms; with it there is the throughput
too, in seconds of audio a second of computing, from samples to tokens. The condition is the hop, or
the longest piece in seconds, or both.

The paper tests its TED-LIUM models on pieces of T = 10, 15, …, 45 s. Their audio is not public, and
no code of the authors that makes the cuts was found: the cuts here are ours. Pieces follow each
other without gap or overlap; each ends at the quietest place of its last half second, so that words
are seldom cut in two. Texts of pieces are joined.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import soundfile
import torch
from espnet2.asr.frontend.default import DefaultFrontend
from pydantic import Field
from torch.utils.benchmark import timer

from cape_plugins.espnet.paper.frontend import CapeFbank
from cape_studies.command import script
from cape_studies.evaluate.espnet.evaluate import EspnetOptions, errors_of
from cape_studies.evaluate.espnet.models import Model, sources
from cape_studies.evaluate.espnet.testset import read
from cape_studies.evaluate.output import Score, write

SHORTEST_SECONDS = 1.0  # of a piece
SLACK_SECONDS = 0.5
QUIET_SECONDS = 0.02  # as long as the quiet must last
#: half of 10 ms to twice 10 ms: those that cape_fbank matches in training
Hop = Annotated[float, Field(ge=5, le=20)]
Seconds = Annotated[float, Field(gt=SHORTEST_SECONDS, allow_inf_nan=False)]


def main(
    model: str,
    data: Path,
    csv: Path,
    items: Path,
    hops: tuple[Hop, ...] = (),
    pieces: tuple[Seconds, ...] = (),
    device: str = "cpu",
) -> None:
    """Recognise and count errors.

    Args:
        model: [NAME=]PATH, as for cape-espnet-eval.
        data: folder with Kaldi's wav.scp and text.
        csv: file to write, with condition, metric, value, items.
        items: file to write, with the errors of each utterance.
        hops: of the frontend in testing, in ms, from 5 to 20; default: the model's.
        pieces: longest durations of pieces in seconds; default: whole recordings.
        device: cpu or cuda.

    Raises:
        ValueError: see cape-espnet-eval; or the frontend has no hop to set.
    """
    files: dict[str, Any] = {"csv": csv, "items": items, "device": device, "overwrite": True}
    options = EspnetOptions(model=[model], data=[str(data)], **files)
    (source,) = sources(options.model)
    loaded, (utterances, rate) = Model(*source, {}, options.place), read(data)
    for hop in hops:
        set_hop(loaded, hop)

    def scores() -> Iterator[Score]:
        for hop, seconds in product(hops or [None], pieces or [None]):
            if hop is not None:
                set_hop(loaded, hop)
            about = {"condition": " ".join(f"{one:g}" for one in (hop, seconds) if one) or "all"}
            texts, computing = [], 0.0
            for name, one in utterances.items():
                parts = []
                for piece in cut(soundfile.read(one.path, dtype="float32")[0], rate, seconds):
                    speech = loaded.heard(name, piece)
                    if not computing:
                        loaded.tokens(speech)  # the first takes longer
                    began = timer()  # waits for the GPU
                    ids = loaded.tokens(speech)
                    computing += timer() - began
                    parts.append(loaded.hypothesis(ids or []))
                texts.append(" ".join(filter(None, parts)))
            for metric, errors in errors_of(loaded, utterances, texts).items():
                yield Score.of(about, metric, "percent", errors)
            if hop is not None:
                audio = sum(one.seconds for one in utterances.values())
                speed = audio / computing
                yield Score(about, "throughput", "number", speed, len(utterances), audio)

    with torch.inference_mode():
        write(options, scores())


def set_hop(model: Model, milliseconds: float) -> None:
    """Give the frontend another hop; ``model: cape_asr`` takes its timestamps from it.

    Raises:
        ValueError: the frontend has no hop to set.
    """
    frontend = model.asr.frontend
    if not isinstance(frontend, DefaultFrontend | CapeFbank) or model.rate is None:
        kind = type(frontend).__name__
        raise ValueError(f"--hops needs frontend: cape_fbank or default, not {kind}")
    # the default frontend reads its hop from stft
    holder: Any = frontend.stft if isinstance(frontend, DefaultFrontend) else frontend
    holder.hop_length = round(milliseconds * model.rate / 1000)


def cut(samples: np.ndarray, rate: int, seconds: float | None) -> list[np.ndarray]:
    """Consecutive pieces of audio (N,), in the order of time.

    Args:
        samples: of an utterance.
        rate: sampling rate in Hz.
        seconds: longest duration of a piece; None leaves the audio whole. The rest at the end is a
            piece of its own; if it is shorter than 1 s, it belongs to the piece before it.
    """
    pieces = []
    longest = len(samples) if seconds is None else round(seconds * rate)
    while len(samples) - longest >= round(SHORTEST_SECONDS * rate):
        first = longest - round(SLACK_SECONDS * rate)
        end = first + quietest(samples[first:longest], rate)
        pieces.append(samples[:end])
        samples = samples[end:]
    return [*pieces, samples]


def quietest(samples: np.ndarray, rate: int) -> int:
    """The centre of the 20 ms of least energy."""
    width = round(QUIET_SECONDS * rate)
    energy = np.convolve(np.square(samples, dtype=np.float64), np.ones(width), mode="valid")
    return int(np.argmin(energy)) + width // 2


if __name__ == "__main__":
    script(main)
