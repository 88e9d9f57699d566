"""matplotlib without a screen, and how pictures are saved."""

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """matplotlib's pyplot on the Agg backend.

    Raises:
        ImportError: matplotlib is missing; names the extra that brings it.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            f"pictures need matplotlib ({error}): pip install 'cape-plugins[plot]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check(path: Path, overwrite: bool) -> None:
    """Find out before any work whether a picture can be written.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: the file is there, its folder is not, or matplotlib does not know its ending.
    """
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists: choose another name or give --overwrite")
    if not path.parent.is_dir():
        raise ValueError(f"no such folder: {path.parent} (for {path.name})")
    known = sorted(pyplot().figure().canvas.get_supported_filetypes())
    pyplot().close()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"{path} has no ending that matplotlib draws: {', '.join(known)}")


def save(figure: Any, path: Path) -> None:
    """Write and close a figure."""
    figure.savefig(path, dpi=150)
    pyplot().close(figure)
