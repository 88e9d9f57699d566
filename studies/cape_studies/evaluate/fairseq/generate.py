"""Runs fairseq's generator, or its scorer of references, on every sentence exactly once."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor
from tqdm import tqdm

from cape_studies.evaluate.fairseq.checkpoints import Loaded
from cape_studies.evaluate.fairseq.options import FairseqOptions

_UNKNOWN = "UNKNOWNTOKENINHYP", "UNKNOWNTOKENINREF"  # two words, so that they never match


class Test(NamedTuple):
    """A model, its task, and the dataset that it is tested on."""

    model: Any
    task: Any
    dataset: Any
    about: Mapping[str, object]  # the columns of its scores


def open_test(loaded: Loaded, subset: str, options: FairseqOptions) -> Test:
    """Open a subset; refuse what the model cannot take.

    Raises:
        ValueError: the subset is missing, is empty, or has no references; or a sentence is longer
            than the model, a batch or a hypothesis allows.
    """
    model, task = loaded.model, loaded.task
    about = {"model": loaded.name, "checkpoint": loaded.path, "subset": subset}
    try:
        task.load_dataset(subset)
    except (FileNotFoundError, ValueError) as error:  # it is not there, or it is empty
        pair = f"{task.cfg.source_lang}-{task.cfg.target_lang}"
        raise ValueError(
            f"the subset {subset!r} in {options.data} cannot be opened: {error}, of {pair} as in "
            f"the training of {loaded.path}"
        ) from error
    limits = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    test = Test(model, task, task.dataset(subset), about)
    source, target = test.dataset.src_sizes, test.dataset.tgt_sizes
    if len(source) == 0 or target is None:
        raise ValueError(f"the subset {subset!r} in {options.data} is empty or has no target side")
    for side, sizes, limit in zip(("source", "target"), (source, target), limits, strict=True):
        if sizes.max() > min(limit, options.max_tokens):
            raise ValueError(
                f"a {side} sentence of {subset!r} has {sizes.max()} tokens; the model was trained "
                f"for at most {limit}, --max-tokens is {options.max_tokens}"
            )
    if options.score == "bleu":
        allowed = (options.max_len_a * source + options.max_len_b).astype(int)
        worst = int((target - allowed).argmax())
        if target[worst] - 1 > allowed[worst]:  # sizes count EOS
            raise ValueError(
                f"the reference of sentence {worst} has {target[worst] - 1} tokens, but hypotheses "
                f"would end at {allowed[worst]}: give --max-len-a 2, say"
            )
    return test


def translate(test: Test, options: FairseqOptions) -> list[tuple[str, str]]:
    """Hypotheses by beam search and references, in order, without BPE, still tokenised.

    Raises:
        ValueError: there is no hypothesis for a sentence, as its numbers are NaN.
    """
    names = ("beam", "lenpen", "max_len_a", "max_len_b")
    config = GenerationConfig(**{name: getattr(options, name) for name in names})
    test.model.prepare_for_inference_(SimpleNamespace(generation=config))
    generator = test.task.build_generator([test.model], config)
    words = test.task.target_dictionary
    left_out = getattr(generator, "symbols_to_strip_from_output", {generator.eos})

    def text(tokens: Tensor, unknown: str) -> str:
        return words.string(
            tokens.int(), "subword_nmt", extra_symbols_to_ignore=left_out, unk_string=unknown
        )

    return [
        (text(hypothesis["tokens"], _UNKNOWN[0]), text(target, _UNKNOWN[1]))
        for hypothesis, target in _generate(test, generator, options)
    ]


def score_references(test: Test, options: FairseqOptions) -> list[list[float]]:
    """The loss of each token of each reference, in nats, given the true tokens before it.

    EOS is included. It is what ``fairseq-generate --score-reference`` writes as P-, without label
    smoothing and with the other sign.

    Raises:
        ValueError: a loss is not a finite number.
    """
    scorer = test.task.build_generator([test.model], GenerationConfig(score_reference=True))
    found = _generate(test, scorer, options)
    losses = [-scored["positional_scores"].double() for scored, _ in found]
    for number, loss in enumerate(losses):
        if not loss.isfinite().all():
            raise ValueError(f"a loss in sentence {number} is not finite: the training has failed")
    return [loss.tolist() for loss in losses]


@torch.no_grad()
def _generate(test: Test, generator: Any, options: FairseqOptions) -> list[tuple[Any, Any]]:
    """The best hypothesis and the target of each sentence."""
    place = options.place
    task, model, pad = test.task, test.model.to(place), test.task.target_dictionary.pad()
    iterator = task.get_batch_iterator(
        dataset=test.dataset,
        max_tokens=options.max_tokens,
        required_batch_size_multiple=1,  # else fairseq-fixed leaves out the last sentences
        num_workers=options.workers,
        disable_iterator_cache=True,
    ).next_epoch_itr(shuffle=False)
    found: dict[int, tuple[Any, Any]] = {}
    title = f"{test.about['model']} {test.about['subset']}"
    for batch in tqdm(iterator, desc=title, unit=" batches", disable=None, leave=False):
        sample = utils.apply_to_sample(lambda tensor: tensor.to(place), batch)
        with torch.autocast(place.type, torch.bfloat16, enabled=options.amp):
            hypotheses = task.inference_step(generator, [model], sample)
        numbers = batch["id"].tolist()
        for number, hypothesis, target in zip(numbers, hypotheses, batch["target"], strict=True):
            if not hypothesis:
                raise ValueError(f"no hypothesis for sentence {number}: the numbers are NaN")
            best = {name: hypothesis[0][name].cpu() for name in ("tokens", "positional_scores")}
            found[number] = best, utils.strip_pad(target, pad)
    return [found[number] for number in range(len(test.dataset))]
