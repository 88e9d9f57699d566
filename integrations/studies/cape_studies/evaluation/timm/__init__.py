"""Accuracy and throughput of timm's image models over resolutions: ``cape-timm-eval``."""

from collections.abc import Sequence

from cape_studies.evaluation import command


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; without timm one line that says what to install."""
    command.call("cape_studies.evaluation.timm.evaluate", "cape-timm-eval", "timm", argv)
