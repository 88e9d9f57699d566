"""Word and character errors of ESPnet's models by duration: ``cape-espnet-eval``."""

from collections.abc import Sequence

from cape_studies.evaluation import command


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; without ESPnet one line that says what to install."""
    command.call("cape_studies.evaluation.espnet.evaluate", "cape-espnet-eval", "espnet", argv)
