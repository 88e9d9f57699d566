"""Whether pieces of this folder may run: the guard of all of them, and the switch."""

import os

from torch import Tensor

from cape_plugins.checks import is_plain

ON = os.environ.get("CAPE_PLUGINS_FUSED", "1") != "0"  #: the switch


def usable(*tensors: Tensor) -> bool:
    """Whether pieces of this folder may run on these tensors.

    They have gradients of their own and write results into tensors of another dtype, which only
    eager mode on plain tensors allows, on the devices where it is known to work.
    """
    return ON and is_plain(*tensors) and tensors[0].device.type in ("cpu", "cuda")
