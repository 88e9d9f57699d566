"""``python -m cape_studies.evaluate HOST …`` is ``cape-HOST-eval …``.

``HOST … --then HOST …`` does several in one process, as importing a host takes seconds. The first
that fails ends it.
"""

import shlex
import sys

from cape_studies.evaluate import THEN, call

if __name__ == "__main__":
    words = sys.argv[1:]
    while THEN in words:
        end = words.index(THEN)
        call(words[0], words[1:end])
        words = words[end + 1 :]
        print(f"\n$ cape-{words[0]}-eval {shlex.join(words[1:])}", flush=True)
    call(words[0], words[1:])
