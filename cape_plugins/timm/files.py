"""What is wrong with a file that should hold weights, in one line.

>>> fault("vit.pth")
'vit.pth is an HTML page, no weights: download the file itself'
"""

import json
import zipfile
from pathlib import Path

_ARCHIVES = (".pth", ".pt", ".tar", ".bin", ".npz")


def fault(path: str | Path) -> str | None:
    """A line that says why a file cannot hold weights, and what to do; None where it may.

    Reads the file's beginning and, of a zip archive (torch.save's and NumPy's .npz), the end.
    """
    path = Path(path)
    if path.is_dir():
        return f"{path} is a folder: give a file, or local-dir:{path} as the model's name"
    if not path.is_file():
        return f"{path} does not exist: give the path of a .pth, .safetensors or .npz"
    size = path.stat().st_size
    if size == 0:
        return f"{path} is empty: copy or download it again"
    with path.open("rb") as file:
        start = file.read(512)
        if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
            return f"{path} is an HTML page, no weights: download the file itself"
        if start.startswith(b"version https://git-lfs"):
            return f"{path} is a pointer of Git LFS, no weights: fetch the file with git lfs pull"
        if path.suffix.lower() == ".safetensors":
            file.seek(0)
            return _fault_of_safetensors(path, file.read(8), size)
    is_zip = zipfile.is_zipfile(path)
    if start.startswith(b"PK") and not is_zip:
        return f"{path} is truncated: copy or download it again"
    if path.suffix.lower() == ".npz" and not is_zip:
        return f"{path} is no .npz archive: copy it again, or name it as what it is"
    return None


def fault_in_folder(folder: str | Path) -> str | None:
    """As :func:`fault`, of the first faulty file with weights in a folder of ``local-dir:``."""
    if not Path(folder).is_dir():
        return f"{folder} is no folder: give one with config.json and the weights"
    for path in sorted(Path(folder).iterdir()):
        is_weights = path.suffix.lower() in (*_ARCHIVES, ".safetensors")
        reason = fault(path) if is_weights else None
        if reason is not None:
            return reason
    return None


def _fault_of_safetensors(path: Path, start: bytes, size: int) -> str | None:
    length = int.from_bytes(start, "little")
    if len(start) == 8 and length + 8 <= size:
        with path.open("rb") as file:
            file.seek(8)
            header = file.read(length)
        try:
            entries = json.loads(header)
            ends = [one["data_offsets"][1] for name, one in entries.items() if name[0] != "_"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"{path} is no safetensors file: name it as what it is, as .pth or .npz"
        if 8 + length + max(ends, default=0) == size:
            return None
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return f"{path} is no safetensors file but torch.save's: name it .pth"
    return f"{path} is truncated, or no safetensors file: copy or download it again"
