"""Prints the flags about positions; ``fairseq-train --help`` prints those of no model.

python -m cape_plugins.fairseq
"""

from argparse import ArgumentParser

from fairseq.dataclass.utils import gen_parser_from_dataclass

from cape_plugins.fairseq.options import HOST, PositionFlags, SourceFlags
from cape_plugins.variants import names


def main() -> None:
    """Print them, with their defaults, and what goes into ``--pos`` and ``--pos-options``."""
    parser = ArgumentParser("fairseq-train … --arch cape_transformer", add_help=False)
    for flags in (PositionFlags, SourceFlags):
        gen_parser_from_dataclass(parser, flags())
    parser.print_help()
    print(f"\n--pos is one of {', '.join(names(HOST.axes))}")
    for pos in names(HOST.axes):
        for name, one in HOST.taken(pos).items():
            if name not in HOST.ours:
                print(f"--pos {pos} --pos-options: {name} = {one.default}: {HOST.help(one)}")


if __name__ == "__main__":
    main()
