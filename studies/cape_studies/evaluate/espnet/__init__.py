"""Word and character errors of ESPnet's models by duration: ``cape-espnet-eval``."""

from functools import partial

from cape_studies.evaluate import call

main = partial(call, "espnet")
