"""Studies: a YAML says what is trained, tested and shown; each host's own trainer trains.

``cape-run`` runs a study, ``cape-report`` shows what came out. Needs
``cape-plugins[experiments]``.
"""

from collections.abc import Sequence

from cape_plugins.evaluation import command


def run_main(argv: Sequence[str] | None = None) -> None:
    """``cape-run``."""
    command.call("cape_plugins.experiments.run", "cape-run", "experiments", argv)


def report_main(argv: Sequence[str] | None = None) -> None:
    """``cape-report``."""
    command.call("cape_plugins.experiments.report", "cape-report", "experiments", argv)
