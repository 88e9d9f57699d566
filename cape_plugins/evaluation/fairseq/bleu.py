"""Beam search by fairseq's generator, and two kinds of BLEU."""

from collections.abc import Iterator, Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer

from cape_plugins.evaluation.fairseq.checkpoints import Loaded
from cape_plugins.evaluation.fairseq.options import BleuOptions
from cape_plugins.evaluation.fairseq.testset import Runtime, batches

# as fairseq's validation BLEU has it: an unknown word must match nothing, not even another
_UNKNOWN_HYPOTHESIS = "UNKNOWNTOKENINHYP"
_UNKNOWN_REFERENCE = "UNKNOWNTOKENINREF"


class Translation(NamedTuple):
    """The best of the beam and the binarised target, without BPE, still tokenised."""

    hypothesis: str
    reference: str


def check_max_length(dataset: Any, search: BleuOptions) -> None:
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
    loaded: Loaded, dataset: Any, search: BleuOptions, runtime: Runtime, title: str = ""
) -> list[Translation]:
    """Translate every sentence.

    Args:
        loaded: its model is moved to the device and changed for generation.
        dataset: of its task.
        search: beam, lenpen, max_len_a, max_len_b and post_process.
        runtime: how it is run.
        title: of the progress bar.

    Returns:
        translations in the order of the test set.

    Raises:
        ValueError: a sentence is too long for the model, or numbers overflowed.
        RuntimeError: a sentence was left out.
    """
    names = ("beam", "lenpen", "max_len_a", "max_len_b")
    config = GenerationConfig(**{name: getattr(search, name) for name in names})
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
        with runtime.autocast():
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


class Compared(NamedTuple):
    """Hypotheses and references of one kind of BLEU.

    Attributes:
        metric: sacrebleu's, that scores them.
    """

    metric: BLEU
    hypotheses: Sequence[str]
    references: Sequence[str]

    def score(self) -> Any:
        """sacrebleu's score object of all sentences."""
        return self.metric.corpus_score(list(self.hypotheses), [list(self.references)])


def tokenised(hypotheses: Sequence[str], references: Sequence[str]) -> Compared:
    """Text as it is split, by the formula of multi-bleu.perl (no smoothing)."""
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return Compared(metric, hypotheses, references)


def compared(
    translations: Sequence[Translation],
    language: str,
    raw_references: Sequence[str] | None = None,
    detokenizer: str = "moses",
) -> dict[str, Compared]:
    """Both kinds of BLEU, by the names of ``BleuRow``'s columns.

    Args:
        translations: of the whole test set.
        language: of the target, for detokenising.
        raw_references: untokenised lines; None detokenises the tokenised ones, which is not
            comparable with published sacreBLEU.
        detokenizer: ``moses`` (sacremoses) or ``none``.
    """
    hypotheses, references = zip(*translations, strict=True)
    if raw_references is None:
        raw_references = detokenise(references, language, detokenizer)
    plain = detokenise(hypotheses, language, detokenizer)
    return {
        "bleu": tokenised(hypotheses, references),
        "sacrebleu": Compared(BLEU(trg_lang=language), plain, raw_references),
    }


def score(compared: dict[str, Compared]) -> dict[str, Any]:
    """Columns of ``BleuRow``; BLEU in percent."""
    found = {name: each.score() for name, each in compared.items()}
    return {
        "bleu": found["bleu"].score,
        "brevity_penalty": found["bleu"].bp,
        "length_ratio": found["bleu"].sys_len / found["bleu"].ref_len,
        "sacrebleu": found["sacrebleu"].score,
        "signature": str(compared["sacrebleu"].metric.get_signature()),
    }


def items(compared: dict[str, Compared]) -> Iterator[tuple[object, ...]]:
    """sacreBLEU's statistics of every sentence."""
    for name, (metric, hypotheses, references) in compared.items():
        metric = copy(metric)
        metric.effective_order = True  # it advises that; the statistics do not depend on it
        for i, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True)):
            of = metric.sentence_score(hypothesis, [reference])
            yield name, i, of.sys_len, of.ref_len, *of.counts, *of.totals


def detokenise(lines: Sequence[str], language: str, detokenizer: str = "moses") -> list[str]:
    """Undo the Moses tokeniser with sacremoses, or with ``none`` nothing."""
    if detokenizer == "none":
        return list(lines)
    moses = MosesDetokenizer(lang=language)
    return [moses.detokenize(line.split()) for line in lines]
