"""For speed alone: the same results as the plain operations beside each call, in fewer kernels.

In eager mode every operation is a kernel, which costs a launch and reads and writes whole tensors.
Each piece here saves some of them, and says what ``benchmarks/kernels.py`` counts without it.
``CAPE_PLUGINS_FUSED=0`` in the environment turns the folder off. Compilers, tracing, torch.func and
fake tensors always get the plain operations.
"""

import os

from torch import Tensor

from cape_plugins.checks import is_plain

ON = os.environ.get("CAPE_PLUGINS_FUSED", "1") != "0"  #: the switch


def usable(*tensors: Tensor) -> bool:
    """Whether pieces of this folder may run on these tensors: the guard of all of them.

    They have gradients of their own and write results into tensors of another dtype, which only
    eager mode on plain tensors allows, on the devices where it is known to work.
    """
    return ON and is_plain(*tensors) and tensors[0].device.type in ("cpu", "cuda")


# after the guard, which they use
from cape_plugins.fused.constants import constant  # noqa: E402
from cape_plugins.fused.elementwise import add_where, rows, sin  # noqa: E402
from cape_plugins.fused.mixed_table import mixed_table  # noqa: E402
from cape_plugins.fused.relative import attend_in_parts, distance_scores  # noqa: E402
from cape_plugins.fused.rotation import pays, rotate  # noqa: E402

__all__ = [
    "ON",
    "add_where",
    "attend_in_parts",
    "constant",
    "distance_scores",
    "mixed_table",
    "pays",
    "rotate",
    "rows",
    "sin",
    "usable",
]
