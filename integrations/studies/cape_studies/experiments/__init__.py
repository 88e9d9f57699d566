"""Studies: a YAML says what is trained, tested and shown; each host's own trainer trains.

``cape-run`` runs a study, ``cape-report`` shows what came out.
"""

from collections.abc import Sequence


def run_main(argv: Sequence[str] | None = None) -> None:
    """``cape-run``."""
    from cape_studies.experiments.run import main  # Hydra and exca take a second

    main(argv)


def report_main(argv: Sequence[str] | None = None) -> None:
    """``cape-report``."""
    from cape_studies.experiments.report import main

    main(argv)
