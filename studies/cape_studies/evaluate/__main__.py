"""``python -m cape_studies.evaluate HOST`` is ``cape-HOST-eval``."""

import sys

from cape_studies.evaluate import call

if __name__ == "__main__":
    call(sys.argv[1], sys.argv[2:])
