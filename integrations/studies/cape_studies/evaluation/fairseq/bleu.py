"""Two kinds of BLEU by sacrebleu, as statistics of each sentence that add up to the score."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer

from cape_studies.evaluation.output import How


class Compared(NamedTuple):
    """Hypotheses and references of one kind of BLEU.

    Attributes:
        how: the score is made of its sentences, see the output's columns.
        metric: sacrebleu's.
    """

    how: How
    metric: BLEU
    hypotheses: Sequence[str]
    references: Sequence[str]

    def items(self) -> list[tuple[int, ...]]:
        """Of each sentence: number; lengths of hypothesis and reference; 1- to 4-grams that match,
        and all."""
        metric = copy(self.metric)
        metric.effective_order = True  # it advises that; the statistics do not depend on it
        pairs = zip(self.hypotheses, self.references, strict=True)
        found = [metric.sentence_score(hypothesis, [reference]) for hypothesis, reference in pairs]
        return [(i, f.sys_len, f.ref_len, *f.counts, *f.totals) for i, f in enumerate(found)]

    def __str__(self) -> str:
        """The score of all sentences as sacrebleu writes it, with its signature."""
        score = self.metric.corpus_score(list(self.hypotheses), [list(self.references)])
        return score.format(signature=str(self.metric.get_signature()))


def compared(
    translations: Sequence[tuple[str, str]],
    language: str,
    raw_references: Sequence[str] | None = None,
    moses: bool = True,
) -> dict[str, Compared]:
    """Both kinds of BLEU: ``bleu`` of text as it is split, by the formula of multi-bleu.perl, and
    ``sacrebleu`` of detokenised text.

    Args:
        translations: hypothesis and reference of each sentence, tokenised.
        language: of the target.
        raw_references: untokenised lines; None detokenises the tokenised ones, which is not
            comparable with published sacreBLEU.
        moses: undo the Moses tokeniser with sacremoses.
    """
    hypotheses, references = zip(*translations, strict=True)
    undo = MosesDetokenizer(lang=language)

    def plain(lines: Sequence[str]) -> list[str]:
        return [undo.detokenize(line.split()) if moses else line for line in lines]

    split = BLEU(tokenize="none", smooth_method="none", force=True)
    raw = plain(references) if raw_references is None else raw_references
    return {
        "bleu": Compared("bleu_unsmoothed", split, hypotheses, references),
        "sacrebleu": Compared("bleu", BLEU(trg_lang=language), plain(hypotheses), raw),
    }
