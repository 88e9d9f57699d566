"""Evaluate translation models of fairseq: ``cape-fairseq-eval bleu``, ``loss``, ``stack``.

Section 4.3 of the paper. Any encoder-decoder of fairseq is taken, ours and its own Transformer
alike. BLEU of test sets, translated by fairseq's generator, at the checkpoint with the best BLEU on
the validation set; the mean negative log loss at each position of the target; and test sets of long
sentences, made of consecutive ones (the paper's 3003 pairs became 270). Every sentence is counted
exactly once, or the command fails.
"""

from collections.abc import Sequence
from itertools import product, zip_longest

from cape_studies.evaluation.fairseq import bleu, stacking
from cape_studies.evaluation.fairseq.checkpoints import sources
from cape_studies.evaluation.fairseq.generate import Test, open_test, score_references, translate
from cape_studies.evaluation.fairseq.options import BleuOptions, Command, LossOptions, StackOptions
from cape_studies.evaluation.output import Results, Score

OPTIONS = Command


def run(options: BleuOptions | LossOptions | StackOptions) -> None:
    """Do the command that the options are of."""
    if isinstance(options, StackOptions):
        stacking.write(options)
    elif isinstance(options, BleuOptions):
        run_bleu(options)
    else:
        run_loss(options)


def run_bleu(options: BleuOptions) -> None:
    """Choose checkpoints by BLEU on the validation set, and test them.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    results = Results(options.csv_path, options.items, options.overwrite)
    found = sources(options.model)
    raw = None if options.reference is None else stacking.read_lines(options.reference)
    subsets = options.gen_subset.split(",")
    if raw is not None and len(subsets) > 1:
        raise ValueError("--reference is of one --gen-subset: test several apart")
    for (name, (path, *others)), subset in product(found, subsets):
        test = open_test(name, path, options.logns[0], subset, options)
        if raw is not None and len(raw) != len(test.dataset):
            raise ValueError(
                f"{options.reference} has {len(raw)} lines, {subset!r} in "
                f"{options.data} has {len(test.dataset)} sentences"
            )
        if others:
            open_test(name, path, options.logns[0], "valid", options)
    with results:
        for (name, paths), logn in product(found, options.logns):
            best = paths[0]
            if len(paths) > 1:
                valid = {
                    path: _bleu(open_test(name, path, logn, "valid", options), None, options)
                    for path in paths
                }
                best = max(valid, key=lambda path: valid[path][0].value)
                results.add(*valid[best])
            for subset in subsets:
                results.add(*_bleu(open_test(name, best, logn, subset, options), raw, options))


def _bleu(test: Test, raw: Sequence[str] | None, options: BleuOptions) -> list[Score]:
    language = test.task.cfg.target_lang
    return list(bleu.scores(test.about, translate(test, options), language, raw))


def run_loss(options: LossOptions) -> None:
    """Score references by position.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    results = Results(options.csv_path, options.items, options.overwrite)
    found = sources(options.model, only_best=True)
    trained = [(name, path, logn) for name, (path,) in found for logn in options.logns]
    for one in trained:
        open_test(*one, options.gen_subset, options)
    with results:
        for one in trained:
            test = open_test(*one, options.gen_subset, options)
            for position, nats in enumerate(zip_longest(*score_references(test, options)), 1):
                items = [(i, loss, 1) for i, loss in enumerate(nats) if loss is not None]
                about = {**test.about, "position": position}
                results.add(Score.of(about, "loss", "mean", items))
