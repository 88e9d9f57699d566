"""Folders of WAV or FLAC files → what ``espnet2.bin.asr_train`` reads, without Kaldi.

    python integrations/espnet/prepare_wavs.py --out data --token-type char \
        --split train wavs/train --split valid wavs/valid --split test wavs/test test.tsv

A split is a name, a folder (searched with its sub-folders, also those behind links) and,
optionally, a file of transcripts, TSV or Kaldi's ``text``. Lines whose audio is not in the folder
are skipped. Without the file each ``a.wav`` has an ``a.txt`` beside it. Needs cape-studies, whose
``cape_studies.data.recordings`` reads the files.

Writes <out>/<split>/wav.scp and text, and <out>/tokens.txt from the transcripts of ``train``.
Everything is checked first, and nothing is written if anything is wrong.
"""

import argparse
from pathlib import Path

from cape_studies.data.recordings import Split, prepare


def main() -> None:
    """Check, write, and print the sampling rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--split", nargs="+", action="append", required=True, metavar="NAME FOLDER [TRANSCRIPTS]")
    add("--out", type=Path, required=True, help="folder to write")
    add("--token-type", choices=["word", "char"], default="char")
    arguments = parser.parse_args()
    for values in arguments.split:
        if len(values) not in (2, 3):
            parser.error(f"--split takes a name, a folder and maybe a file, got {values}")
    splits = [Split(name, *map(Path, paths)) for name, *paths in arguments.split]
    try:
        rate = prepare(splits, arguments.out, arguments.token_type)
    except (ValueError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print(
        f"{arguments.out}: all files are at {rate} Hz. In frontend_conf set fs: {rate}, "
        f"win_length: {round(0.025 * rate)} (25 ms), hop_length: {round(0.01 * rate)} (10 ms)"
    )


if __name__ == "__main__":
    main()
