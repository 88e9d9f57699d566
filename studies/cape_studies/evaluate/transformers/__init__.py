"""Loss by length and by position of causal language models: ``cape-transformers-eval``."""

from functools import partial

from cape_studies.evaluate import call

main = partial(call, "transformers")
