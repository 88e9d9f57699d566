"""Two kinds of BLEU by sacrebleu, as statistics of each sentence that add up to the score."""

from collections.abc import Iterator, Mapping, Sequence

from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer

from cape_studies.evaluation.output import How, Score


def scores(
    about: Mapping[str, object],
    translations: Sequence[tuple[str, str]],
    language: str,
    raw_references: Sequence[str] | None = None,
) -> Iterator[Score]:
    """Both kinds of BLEU: ``bleu`` of text as it is split, by the formula of multi-bleu.perl, and
    ``sacrebleu`` of detokenised text; sacrebleu's line with its signature is printed.

    Args:
        about: columns of the scores.
        translations: hypothesis and reference of each sentence, tokenised.
        language: of the target.
        raw_references: untokenised lines; None detokenises the tokenised ones, which is not
            comparable with published sacreBLEU.
    """
    hypotheses, references = zip(*translations, strict=True)
    undo = MosesDetokenizer(lang=language)

    def plain(lines: Sequence[str]) -> list[str]:
        return [undo.detokenize(line.split()) for line in lines]

    split = BLEU(tokenize="none", smooth_method="none", force=True)
    raw = plain(references) if raw_references is None else raw_references
    kinds: dict[str, tuple[How, BLEU, Sequence[str], Sequence[str]]] = {
        "bleu": ("bleu_unsmoothed", split, hypotheses, references),
        "sacrebleu": ("bleu", BLEU(trg_lang=language), plain(hypotheses), raw),
    }
    title = " ".join(str(value) for value in about.values() if value is not None)
    for metric, (how, bleu, ours, theirs) in kinds.items():
        whole = bleu.corpus_score(ours, [theirs]).format(signature=str(bleu.get_signature()))
        made = metric == "sacrebleu" and raw_references is None
        note = ", against detokenised references (not comparable)" if made else ""
        print(f"{title} {metric}{note}: {whole}", flush=True)
        each = [bleu.corpus_score([a], [[b]]) for a, b in zip(ours, theirs, strict=True)]
        items = [(i, e.sys_len, e.ref_len, *e.counts, *e.totals) for i, e in enumerate(each)]
        yield Score.of(about, metric, how, items)
