"""Finds models of ``espnet2.bin.asr_train``, and loads them with ESPnet's Speech2Text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.bin.asr_inference import Speech2Text
from espnet2.tasks.asr import ASRTask

import cape_plugins.espnet  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins.espnet.paper.frontend import CapeFbank, sampling_rate
from cape_plugins.espnet.paper.model import facts
from cape_studies.command import said
from cape_studies.evaluate.espnet.testset import split_name
from cape_studies.options import once


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
        rate: sampling rate in Hz; None if the config does not have it.
        shortest: samples of the shortest audio that has features.

    Raises:
        ValueError: the model cannot be built, lacks weights or has others, has no CTC and no
            ``--search``, or takes no audio; or the search does not have such an option.
    """

    def __init__(self, name: str, file: Path, search: Mapping[str, Any], place: Any) -> None:
        self.name, self.file, self.searches = name, file, bool(search)
        chosen = search or {"ctc_weight": 1.0, "beam_size": 1}  # the defaults need a decoder
        config = file.parent / "config.yaml"
        try:
            self.speech2text = Speech2Text(config, file, device=str(place), **chosen)
            self.asr: Any = self.speech2text.asr_model
            args = self.speech2text.asr_train_args
            args.use_preprocessor = True
            self.prepare: Any = ASRTask.build_preprocess_fn(args, train=False)
            state = torch.load(file, map_location="cpu", weights_only=False)
            # ESPnet loads with strict=False; older checkpoints lack the mark
            wrong = set(state.get("module", state)) ^ set(self.asr.state_dict())
            if wrong := {name for name in wrong if ".mark." not in name}:
                raise ValueError(
                    f"{len(wrong)} weights are in one of the file and the model of config.yaml, "
                    f"not in both, such as {min(wrong)}: are they from two trainings?"
                )
            if getattr(self.asr, "ctc", None) is None and not search:
                raise ValueError("it has no CTC (ctc_weight: 0), so it needs --search")
            if self.asr.frontend is None:
                raise ValueError("it has no frontend: it takes features, not audio")
            self.rate, _, self.shortest = facts(self.asr.frontend)
            if self.rate is None and (fs := (args.frontend_conf or {}).get("fs")) is not None:
                self.rate = sampling_rate(fs)
        except Exception as error:  # for bad files and options ESPnet has errors of many types
            how = f" with --search {dict(search)}" if search else ""
            raise ValueError(f"{file} cannot be loaded{how}: {said(error, 3)}") from error

    def set_hop(self, milliseconds: float) -> None:
        """Give the frontend another hop; ``model: cape_asr`` takes its timestamps from it.

        Raises:
            ValueError: the frontend has no hop to set, or this one is out of its range.
        """
        frontend = self.asr.frontend
        if not isinstance(frontend, DefaultFrontend | CapeFbank) or self.rate is None:
            kind = type(frontend).__name__
            raise ValueError(f"--hops needs frontend: cape_fbank or default, not {kind}")
        if (
            not 5 <= milliseconds <= 20
        ):  # from half of 10 ms to twice 10 ms: the hops that cape_fbank matches in training
            raise ValueError(f"--hops must lie within 5 … 20 ms, got {milliseconds:g}")
        # the default frontend reads its hop from stft
        holder: Any = frontend.stft if isinstance(frontend, DefaultFrontend) else frontend
        holder.hop_length = round(milliseconds * self.rate / 1000)

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

    def tokens(self, text: str) -> list[str]:
        """The tokens of a transcript."""
        return self.prepare.tokenizer.text2tokens(self.prepare.text_cleaner(text))

    @property
    def known(self) -> set[str]:
        """The token list."""
        return set(self.prepare.token_id_converter.token2id)


def sources(given: Sequence[str]) -> dict[str, Path]:
    """Names and files of ``--model``.

    Args:
        given: [NAME=]PATH of a folder of ``asr_train`` with one ``valid.*.best.pth``, or of a .pth
            with config.yaml beside it.

    Raises:
        ValueError: a name is given twice, a file is missing, or a folder has several best files.
    """
    paths = [split_name(one, "--model") for one in given]
    once([repr(name) for name, _ in paths], "--model", ": give names with --model NAME=PATH")
    found = {name: _best(path) if path.is_dir() else path for name, path in paths}
    for file in found.values():
        for needed in (file, file.parent / "config.yaml"):
            if not needed.is_file():
                raise ValueError(f"--model: no such file or folder: {needed}")
    return found


def _best(folder: Path) -> Path:
    wanted = "valid.*.best.pth"
    found = {path.resolve(): path for path in sorted(folder.glob(wanted))}  # some are links
    if len(found) == 1:
        return next(iter(found.values()))
    have = ", ".join(sorted(path.name for path in folder.glob("*.pth"))) or "no .pth at all"
    raise ValueError(f"{folder} needs one {wanted}, it has {have}: give one with its path")
