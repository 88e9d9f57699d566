"""Accuracy of timm's image models over resolutions: ``cape-timm-eval``."""

from functools import partial

from cape_studies.evaluate import call

main = partial(call, "timm")
