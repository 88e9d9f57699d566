"""BLEU and loss by position of fairseq's models: ``cape-fairseq-eval``.

Section 4.3 of the paper. It takes encoder-decoders of fairseq, ours and fairseq's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer

from cape_studies.data.text import read_lines
from cape_studies.evaluate.fairseq.checkpoints import Loaded, load_model, sources
from cape_studies.evaluate.fairseq.generate import open_test, score_references, translate
from cape_studies.evaluate.fairseq.options import FairseqOptions
from cape_studies.evaluate.output import How, Score

OPTIONS = FairseqOptions


def run(options: FairseqOptions) -> Iterator[Score]:
    """The scores that are asked for.

    Raises:
        ValueError: something does not fit; that is found before any work and before a file is made.
    """
    return bleu(options) if options.score == "bleu" else losses(options)


def bleu(options: FairseqOptions) -> Iterator[Score]:
    """The scores of test sets, at the checkpoint of each training with the best validation BLEU."""
    found = sources(options.model)
    raw = None if options.reference is None else read_lines(options.reference)
    subsets = options.gen_subset.split(",")
    if raw is not None and len(subsets) > 1:
        raise ValueError(
            "--reference belongs to one --gen-subset: test other subsets in calls of their own"
        )
    first = [load_model(name, paths[0], options) for name, paths in found]
    for loaded, (_, paths) in zip(first, found, strict=True):
        if len(paths) > 1:
            open_test(loaded, "valid", options)
        for subset in subsets:
            many = len(open_test(loaded, subset, options).dataset)
            if raw is not None and len(raw) != many:
                raise ValueError(
                    f"{options.reference} has {len(raw)} lines, {subset!r} in "
                    f"{options.data} has {many} sentences"
                )

    def scored(loaded: Loaded, subset: str, raw: Sequence[str] | None = None) -> list[Score]:
        test = open_test(loaded, subset, options)
        language = test.task.cfg.target_lang
        return list(bleu_scores(test.about, translate(test, options), language, raw))

    for name, (_, *others) in found:
        best = first.pop(0)
        if others:
            models = chain([best], (load_model(name, path, options) for path in others))
            tested = ((scored(model, "valid"), model) for model in models)
            valid, best = max(tested, key=lambda one: one[0][0].value)
            yield from valid
        for subset in subsets:
            yield from scored(best, subset, raw)


def bleu_scores(
    about: Mapping[str, object],
    translations: Sequence[tuple[str, str]],
    language: str,
    raw_references: Sequence[str] | None = None,
) -> Iterator[Score]:
    """``bleu`` of tokenised text, by the formula of multi-bleu.perl, and ``sacrebleu`` of
    detokenised text. sacrebleu's line with its signature is printed.

    Args:
        about: columns of the scores.
        translations: hypothesis and reference of each sentence, tokenised.
        language: of the target.
        raw_references: untokenised lines; None: the tokenised ones are detokenised, and the score
            cannot be compared with published sacreBLEU.
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
    title = " ".join(map(str, about.values()))
    for metric, (how, kind, ours, theirs) in kinds.items():
        whole = kind.corpus_score(ours, [theirs]).format(signature=str(kind.get_signature()))
        made = metric == "sacrebleu" and raw_references is None
        note = ", against detokenised references (not comparable)" if made else ""
        print(f"{title} {metric}{note}: {whole}", flush=True)
        each = [kind.corpus_score([a], [[b]]) for a, b in zip(ours, theirs, strict=True)]
        items = [(i, e.sys_len, e.ref_len, *e.counts, *e.totals) for i, e in enumerate(each)]
        yield Score.of(about, metric, how, items)


def losses(options: FairseqOptions) -> Iterator[Score]:
    """The mean negative log loss at each position of the target."""
    found = [(name, path) for name, (path,) in sources(options.model, only_best=True)]
    models = [load_model(*one, options) for one in found]
    for test in [open_test(one, options.gen_subset, options) for one in models]:
        for position, nats in enumerate(zip_longest(*score_references(test, options)), 1):
            items = [(i, loss, 1) for i, loss in enumerate(nats) if loss is not None]
            yield Score.of({**test.about, "position": position}, "loss", "mean", items)
