"""The compiled CPU path: ``add_sinusoid.c``, built on first use by the machine's C compiler.

As Triton and TorchInductor do, the result is kept in a cache folder: ``CAPE_PLUGINS_CACHE``, by
default ``~/.cache/cape_plugins``. Without a compiler :func:`library` is None and the caller takes
torch's operations.
"""

import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import torch
from torch import Tensor

_logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("add_sinusoid.c")
# `native` for wide vectors and fused multiply-add; errno and traps would keep rint scalar
_FLAGS = ("-O3", "-march=native", "-std=c99", "-fno-math-errno", "-fno-trapping-math")
_LINK = ("-shared", "-fPIC", "-lm")
_LEAST_PER_THREAD = 1 << 17  # elements; starting a thread costs as much as some 2^15


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled library, or None where it cannot be built (said once, as a log line)."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "cc", "gcc"))), None)
    if compiler is None or os.name != "posix":
        _logger.info("no C compiler found (CC, cc, gcc): embeddings are added by torch operations")
        return None
    try:
        loaded = ctypes.CDLL(str(_build(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        _logger.info("%s was not built, torch operations serve instead: %s", _SOURCE.name, reason)
        return None
    pointer, long = ctypes.c_void_p, ctypes.c_long
    loaded.cape_add_sinusoid.argtypes = [pointer, pointer, long, pointer, pointer, long, long, long]
    loaded.cape_add_sinusoid.restype = None
    return loaded


def _build(compiler: str) -> Path:
    source = _SOURCE.read_bytes()
    # a home directory may be shared by machines with other processors
    identity = [source, " ".join((compiler, *_FLAGS, *_LINK)).encode(), _processor()]
    key = hashlib.sha256(b"\0".join(identity)).hexdigest()[:16]
    folder = _cache_folder()
    built = folder / f"add_sinusoid-{key}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / built.name
            command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(fresh), *_LINK]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
            os.replace(fresh, built)  # atomic: other processes see all of it or nothing
    return built


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return " ".join(platform.uname()).encode()
    described = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(described)})).encode()


def _cache_folder() -> Path:
    wanted = os.environ.get("CAPE_PLUGINS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(wanted) if wanted else Path(base) / "cape_plugins"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="cape_plugins_"))  # private to this process


def add_rows(
    out: Tensor, content: Tensor, stride: int, positions: Tensor, frequencies: Tensor
) -> None:
    """out = content + embedding, on as many threads as torch uses.

    Args:
        out: (rows, dim) float32, contiguous.
        content: float32, rows of ``dim`` contiguous channels, ``stride`` elements apart.
        stride: 0 repeats one row.
        positions: (rows, axes) float64, contiguous; NaN is padding.
        frequencies: (axes, dim / 2) float64, contiguous, in turns per unit of position.
    """
    loaded = library()
    assert loaded is not None
    rows, dim = out.shape
    axes = positions.shape[1]

    def work(first: int, last: int) -> None:
        loaded.cape_add_sinusoid(
            out.data_ptr() + 4 * dim * first,
            content.data_ptr() + 4 * stride * first,
            stride,
            positions.data_ptr() + 8 * axes * first,
            frequencies.data_ptr(),
            last - first,
            dim // 2,
            axes,
        )

    # plain threads, which release the GIL inside: no second OpenMP runtime, nothing left after fork
    parts = max(1, min(torch.get_num_threads(), rows * dim // _LEAST_PER_THREAD))
    first, *others = itertools.pairwise(rows * part // parts for part in range(parts + 1))
    threads = [threading.Thread(target=work, args=range_) for range_ in others]
    for thread in threads:
        thread.start()
    work(*first)
    for thread in threads:
        thread.join()
