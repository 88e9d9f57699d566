"""CAPE in fairseq: models, architectures, and the optimizer of ADMIN, chosen by name.

Importing this package registers them, as ``cape_plugins.autoload`` does by itself and ``--user-dir
integrations/fairseq/user_dir`` on request.
"""

from argparse import Namespace
from importlib import import_module
from typing import Any

import numpy as np

from cape_plugins.fairseq.relies import RELIES

#: Types in fairseq's checkpoints that torch ≥ 2.6 refuses by default: options of a task, an
#: optimizer or a model without a dataclass, and the counts that ``--eval-bleu`` leaves.
PLAIN: list[Any] = [Namespace, np.ndarray, np.zeros(1).__reduce__()[0], np.dtype]
PLAIN += [type(np.dtype(name)) for name in ("int64", "float64")]


# Before any import of fairseq: the autoload hook calls this in the middle of that import, when
# this module has run no further than here.
def register() -> None:
    """Add the models, their architectures and ``radam`` to fairseq's registries.

    Let torch load :data:`PLAIN` too.

    It imports fairseq if needed. A second call changes nothing. A call while fairseq is being
    imported works once fairseq's sub-packages ``models`` and ``optim`` exist.

    Raises:
        ImportError: fairseq is missing, or lacks a part that the models are built from.
    """
    try:
        import_module("fairseq")  # may come back here through the hook; then the rest is done
        import_module(f"{__name__}.paper.radam").register_radam()
        import_module(f"{__name__}.architectures").register_architectures()
    except ImportError as error:
        raise RELIES.error(str(error)) from error
    import_module("torch.serialization").add_safe_globals(PLAIN)


register()
