"""Studies: a YAML says what is trained, tested and shown; the host's own trainer trains.

``cape-run`` runs a study, ``cape-report`` shows its results.
"""
