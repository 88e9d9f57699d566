"""BLEU and loss by position of fairseq's translation models: ``cape-fairseq-eval``."""

from collections.abc import Sequence

from cape_studies.evaluation import command


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; without fairseq one line that says what to install."""
    command.call("cape_studies.evaluation.fairseq.evaluate", "cape-fairseq-eval", "fairseq", argv)
