"""Finds models of ``espnet2.bin.asr_train``, and loads them with ESPnet's Speech2Text."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.asr.encoder.conformer_encoder import TooShortUttError
from espnet2.bin.asr_inference import Speech2Text
from espnet2.tasks.asr import ASRTask

import cape_plugins.espnet  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins.espnet.paper.model import facts
from cape_studies.command import named, once, said


class Model:
    """A trained model in eval mode on its device.

    Args:
        name: its label.
        file: the .pth, beside the config.yaml of its training.
        search: options of Speech2Text, whose search is used; none: greedy CTC decoding.
        place: its device.

    Attributes:
        speech2text, asr: ESPnet's, and its model.
        prepare: ESPnet's preprocessing in inference, of transcripts and audio.
        rate: sampling rate in Hz; None for frontends but ``default`` and ``cape_fbank``.
        shortest: samples of the shortest audio that has features.

    Raises:
        ValueError: the model cannot be built with these weights, or has no CTC and no ``--search``;
            or the search does not have such an option, or a beam of all tokens.
    """

    def __init__(self, name: str, file: Path, search: Mapping[str, Any], place: Any) -> None:
        self.name, self.file, self.searches = name, file, bool(search)
        chosen = search or {"ctc_weight": 1.0, "beam_size": 1}  # the defaults need a decoder
        config = file.parent / "config.yaml"
        try:
            self.speech2text = Speech2Text(config, file, device=str(place), **chosen)
            self.asr: Any = self.speech2text.asr_model
            state = torch.load(file, map_location="cpu", weights_only=True)
            # ESPnet loads with strict=False; older checkpoints lack the mark
            wrong = set(state.get("module", state)) ^ set(self.asr.state_dict())
            if wrong := {name for name in wrong if ".mark." not in name}:
                raise ValueError(
                    f"{len(wrong)} weights are in one of the file and the model of config.yaml, "
                    f"not in both, such as {min(wrong)}: are they from two trainings?"
                )
            args = self.speech2text.asr_train_args
            args.use_preprocessor = True
            self.prepare: Any = ASRTask.build_preprocess_fn(args, train=False)
            if self.asr.ctc is None and not search:
                raise ValueError("it has no CTC (ctc_weight: 0), so it needs --search")
            tokens = len(args.token_list)
            if search and self.speech2text.beam_search.beam_size >= tokens:
                # ESPnet fails on a wider beam, and of one as wide writes nothing
                raise ValueError(f"beam_size must be less than its {tokens} tokens")
            self.rate, _, self.shortest = facts(self.asr.frontend)
        except Exception as error:  # for bad files and options ESPnet has errors of many types
            how = f" with --search {dict(search)}" if search else ""
            raise ValueError(f"{file} cannot be loaded{how}: {said(error, 3)}") from error

    def heard(self, name: str, samples: np.ndarray) -> torch.Tensor:
        """Audio (N,) of an utterance after ESPnet's preprocessing, on the device, (1, N)."""
        prepared = self.prepare(name, {"speech": samples})["speech"]
        return torch.from_numpy(prepared)[None].to(self.speech2text.device)

    def tokens(self, speech: torch.Tensor) -> list[int] | None:
        """The tokens of audio (1, N), without blanks; None if it has not a single frame.

        Raises:
            ValueError: the model's output is not finite.
        """
        if speech.shape[1] < self.shortest:
            return None
        try:
            if not self.searches:
                return self._greedy(speech)
            found = self.speech2text(speech[0])
        except TooShortUttError:
            return None
        return (found[0] if isinstance(found, tuple) else found)[0][2]  # intermediate CTC

    def _greedy(self, speech: torch.Tensor) -> list[int]:
        """The likeliest token of each frame, with repeats merged and without blanks.

        asr_inference with a beam of one differs: it sums the alignments of a text.
        """
        asr = self.asr
        out, _ = asr.encode(speech, torch.tensor([speech.shape[1]]))
        (logits,) = asr.ctc.ctc_lo(out[0] if isinstance(out, tuple) else out)  # intermediate CTC
        if not bool(logits.isfinite().all()):
            raise ValueError("the model's output is not finite: did its training diverge?")
        left_out = {asr.blank_id, asr.sos, asr.eos}
        return [i for i in logits.argmax(dim=1).unique_consecutive().tolist() if i not in left_out]

    def reference(self, text: str) -> str:
        """A transcript as in ESPnet's training and scoring, without non-linguistic symbols."""
        text = self.prepare.text_cleaner(text)
        if getattr(self.prepare.tokenizer, "non_linguistic_symbols", None):
            return self._text(self.prepare.tokenizer.text2tokens(text))
        return " ".join(text.split())

    def hypothesis(self, ids: Sequence[int]) -> str:
        """The text of token ids (no blanks), as ``asr_inference`` writes it."""
        return self._text(self.prepare.token_id_converter.ids2tokens(ids))

    def _text(self, tokens: Sequence[str]) -> str:
        symbols = getattr(self.prepare.tokenizer, "non_linguistic_symbols", ())
        kept = [token for token in tokens if token not in symbols]
        return " ".join(self.prepare.tokenizer.tokens2text(kept).split())


def sources(given: Sequence[str]) -> list[tuple[str, Path]]:
    """Name and file of each model of ``--model``.

    Args:
        given: [NAME=]PATH of a folder of ``asr_train`` with one ``valid.*.best.pth``, or of a .pth
            with config.yaml beside it.

    Raises:
        ValueError: a folder has none or several, or a name is given twice.
    """
    paths = [split_name(one, "--model") for one in given]
    once([name for name, _ in paths], "--model", ": give names with --model NAME=PATH")
    return [(name, _best(path) if path.is_dir() else path) for name, path in paths]


def _best(folder: Path) -> Path:
    found = {path.resolve(): path for path in folder.glob("valid.*.best.pth")}  # some are links
    if len(found) != 1:
        have = ", ".join(sorted(path.name for path in folder.glob("*.pth"))) or "no .pth at all"
        raise ValueError(
            f"{folder} needs one valid.*.best.pth, it has {have}: give one with its path"
        )
    return found.popitem()[1]


def split_name(given: str, option: str) -> tuple[str, Path]:
    """NAME=PATH in two parts; without NAME it is the last part of PATH."""
    name, path = named(given, option)
    return name or Path(os.path.abspath(path)).name, Path(path)  # a link keeps its name
