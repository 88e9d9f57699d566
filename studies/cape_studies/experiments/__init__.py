"""Studies: a YAML says what is trained, tested and shown; each host's own trainer trains.

``cape-run`` runs a study, ``cape-report`` shows what came out.
"""
