"""Register the hosts, then run a module or a script: the way that needs no autoload.

    python -m cape_plugins.run -m espnet2.bin.asr_train --config conf.yaml …
    python -m cape_plugins.run validate.py --model vit_tiny_patch16_cape_224 …
    torchrun --nproc-per-node 8 -m cape_plugins.run train.py …
    ./asr.sh --python "python3 -m cape_plugins.run" …

What runs sees its own ``sys.argv`` and ``__main__``, as if started without this runner.
"""

import os
import runpy
import sys

from cape_plugins import autoload

_USAGE = "usage: python -m cape_plugins.run [-m] MODULE | SCRIPT.py [ARGUMENT …]"


def main() -> None:
    """Run what the command line names; raises SystemExit with the usage if it names nothing."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    if as_module:
        arguments = arguments[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        raise SystemExit(f"{_USAGE}\n{__doc__}" if arguments else _USAGE)
    target = arguments[0]
    is_script = not as_module and (target.endswith(".py") or os.path.exists(target))
    if is_script and not os.path.exists(target):
        raise SystemExit(f"cape_plugins.run: no such script: {target}\n{_USAGE}")

    os.environ["CAPE_PLUGINS_AUTOLOAD"] = "1"  # asked for explicitly; worker processes inherit it
    autoload.install()
    sys.argv = arguments
    if is_script:
        sys.path[0] = os.path.dirname(os.path.realpath(target))  # as `python SCRIPT.py` has it
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
