"""Folders of WAV or FLAC files → what ``espnet2.bin.asr_train`` reads, without Kaldi.

    python integrations/espnet/prepare_wavs.py --out data --token-type char \
        --split train wavs/train --split valid wavs/valid --split test wavs/test test.tsv

A split is a name, a folder (searched with its sub-folders, also those behind links) and,
optionally, a file of transcripts, TSV or Kaldi's ``text``. Lines whose audio is not in the folder
are skipped. Without the file each ``a.wav`` has an ``a.txt`` beside it. Needs cape-studies, whose
``cape_studies.data.recordings`` reads the files.

Writes <out>/<split>/wav.scp and text, and <out>/tokens.txt from the transcripts of ``train``.
Everything is checked first, and nothing is written if anything is wrong. Transcripts are brought to
Unicode's NFC, so that a letter with an accent is one token.
"""

import argparse
from pathlib import Path

from cape_studies.data.recordings import Utterance, read, the_one_rate, write


def main() -> None:
    """Check, write, and print how many utterances there are, and their sampling rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--split", nargs="+", action="append", required=True, metavar="NAME FOLDER [TRANSCRIPTS]")
    add("--out", type=Path, required=True, help="folder to write")
    add("--token-type", choices=["word", "char"], default="char")
    given = parser.parse_args()
    parts: dict[str, dict[str, Utterance]] = {}
    try:
        for values in given.split:
            if len(values) not in (2, 3):
                raise ValueError(f"--split takes a name, a folder and maybe a file, got {values}")
            name, *paths = values
            if name in parts or (given.out / name).exists():
                raise ValueError(f"{given.out / name} exists: choose another name or --out")
            parts[name], account = read(*map(Path, paths))
            print(f"{name}: {account}")
        rate = the_one_rate(one for part in parts.values() for one in part.values())
        write(given.out, parts, given.token_type)
    except (ValueError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print(
        f"{given.out}: all files are at {rate} Hz. In frontend_conf set fs: {rate}, "
        f"win_length: {round(0.025 * rate)} (25 ms), hop_length: {round(0.01 * rate)} (10 ms)"
    )


if __name__ == "__main__":
    main()
