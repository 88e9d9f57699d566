"""Prints the flags about positions; ``fairseq-train --help`` prints those of no model.

python -m cape_plugins.fairseq
"""

from argparse import ArgumentParser

from fairseq.dataclass.utils import gen_parser_from_dataclass

from cape_plugins.fairseq.options import PositionFlags


def main() -> None:
    """Print them, with their defaults and choices."""
    parser = ArgumentParser("fairseq-train … --arch cape_transformer", add_help=False)
    gen_parser_from_dataclass(parser, PositionFlags())
    parser.print_help()


if __name__ == "__main__":
    main()
