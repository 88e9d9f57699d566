"""BLEU and loss by position of fairseq's translation models: ``cape-fairseq-eval``."""

from functools import partial

from cape_studies.evaluate import call

main = partial(call, "fairseq")
