"""Beam search by fairseq's generator, and two kinds of BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer

from cape_plugins.fairseq.evaluation.checkpoints import Loaded
from cape_plugins.fairseq.evaluation.testset import Runtime, batches

# as fairseq's validation BLEU has it: an unknown word must match nothing, not even another
_UNKNOWN_HYPOTHESIS = "UNKNOWNTOKENINHYP"
_UNKNOWN_REFERENCE = "UNKNOWNTOKENINREF"


@dataclass(frozen=True)
class Search:
    """Beam search.

    Attributes:
        beam: width; 4 for en-de and 5 for en-fr in the paper's recipe.
        lenpen: length penalty; 0.6 and 0.8.
        max_len_a, max_len_b: hypotheses end at a · (source tokens) + b, fairseq's 0 and 200.
        post_process: what removes BPE: ``subword_nmt``, ``sentencepiece`` or ``none``.
    """

    beam: int = 4
    lenpen: float = 0.6
    max_len_a: float = 0.0
    max_len_b: int = 200
    post_process: str = "subword_nmt"


@dataclass(frozen=True)
class Translation:
    """A sentence after BPE has been removed, still tokenised.

    Attributes:
        hypothesis: the best of the beam.
        reference: from the binarised target.
    """

    hypothesis: str
    reference: str


@dataclass(frozen=True)
class Scores:
    """BLEU in percent.

    Attributes:
        bleu: on tokenised text, by the formula of multi-bleu.perl.
        brevity_penalty, length_ratio: of that.
        sacrebleu: on detokenised text.
        signature: of sacrebleu.
    """

    bleu: float
    brevity_penalty: float
    length_ratio: float
    sacrebleu: float
    signature: str


def check_max_length(dataset: Any, search: Search) -> None:
    """Hypotheses must be allowed to become as long as the references.

    Raises:
        ValueError: one may not.
    """
    allowed = (search.max_len_a * dataset.src_sizes + search.max_len_b).astype(int)
    short = dataset.tgt_sizes - 1 > allowed  # sizes count EOS
    if short.any():
        worst = int((dataset.tgt_sizes - allowed).argmax())
        raise ValueError(
            f"the reference of sentence {worst} has {dataset.tgt_sizes[worst] - 1} tokens, but "
            f"hypotheses would end at {allowed[worst]} (fairseq's 0 and 200 by default): give "
            "--max-len-a 2, say"
        )


@torch.no_grad()
def translate(
    loaded: Loaded, dataset: Any, search: Search, runtime: Runtime, title: str = ""
) -> list[Translation]:
    """Translate every sentence.

    Args:
        loaded: its model is moved to the device and changed for generation.
        dataset: of its task.
        search: beam search.
        runtime: how it is run.
        title: of the progress bar.

    Returns:
        translations in the order of the test set.

    Raises:
        ValueError: a sentence is too long for the model, or numbers overflowed.
        RuntimeError: a sentence was left out.
    """
    config = GenerationConfig(
        beam=search.beam,
        lenpen=search.lenpen,
        max_len_a=search.max_len_a,
        max_len_b=search.max_len_b,
    )
    model = runtime.place(loaded.model)
    model.prepare_for_inference_(SimpleNamespace(generation=config))
    generator = loaded.task.build_generator([model], config)
    words = loaded.task.target_dictionary

    def text(tokens: torch.Tensor, unknown: str) -> str:
        ignored = getattr(generator, "symbols_to_strip_from_output", {generator.eos})
        return words.string(
            tokens.int().cpu(),
            None if search.post_process == "none" else search.post_process,
            extra_symbols_to_ignore=ignored,
            unk_string=unknown,
        )

    found: dict[int, Translation] = {}
    for sample in batches(loaded, dataset, runtime, title):
        with runtime.context():
            hypotheses = loaded.task.inference_step(generator, [model], sample)
        for i, number in enumerate(sample["id"].tolist()):
            if not hypotheses[i]:
                raise ValueError(
                    f"no hypothesis for sentence {number}: the model's numbers are NaN"
                )
            found[number] = Translation(
                text(hypotheses[i][0]["tokens"], _UNKNOWN_HYPOTHESIS),
                text(utils.strip_pad(sample["target"][i], words.pad()), _UNKNOWN_REFERENCE),
            )
    return [found[number] for number in range(len(dataset))]


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Any:
    """BLEU of text as it is split, by the formula of multi-bleu.perl (no smoothing).

    Returns:
        sacrebleu's score object.
    """
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return metric.corpus_score(list(hypotheses), [list(references)])


def score(
    translations: Sequence[Translation],
    *,
    language: str,
    raw_references: Sequence[str] | None = None,
    detokenizer: str = "moses",
) -> Scores:
    """Both kinds of BLEU.

    Args:
        translations: of the whole test set.
        language: of the target, for detokenising.
        raw_references: untokenised lines; None detokenises the tokenised ones, which is not
            comparable with published sacreBLEU.
        detokenizer: ``moses`` (sacremoses) or ``none``.
    """
    hypotheses = [t.hypothesis for t in translations]
    references = [t.reference for t in translations]
    tokenised = tokenised_bleu(hypotheses, references)
    if raw_references is None:
        raw_references = detokenise(references, language, detokenizer)
    metric = BLEU(trg_lang=language)
    detokenised = metric.corpus_score(
        detokenise(hypotheses, language, detokenizer), [list(raw_references)]
    )
    return Scores(
        tokenised.score,
        tokenised.bp,
        tokenised.sys_len / tokenised.ref_len,
        detokenised.score,
        str(metric.get_signature()),
    )


def detokenise(lines: Sequence[str], language: str, detokenizer: str = "moses") -> list[str]:
    """Undo the Moses tokeniser with sacremoses, or with ``none`` nothing."""
    if detokenizer == "none":
        return list(lines)
    moses = MosesDetokenizer(lang=language)
    return [moses.detokenize(line.split()) for line in lines]
