"""RAdam, the optimizer of ADMIN's recipes and of the paper's translation models.

fairseq has none of its own.
"""

import copy
import dataclasses
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.registry import REGISTRIES

# fairseq's options for adam that torch's RAdam has too
_OPTIONS = ("adam_betas", "adam_eps", "weight_decay", "lr")
FairseqRAdamConfig = dataclasses.make_dataclass(
    "FairseqRAdamConfig",
    [
        (one.name, one.type, copy.copy(one))
        for one in dataclasses.fields(FairseqAdamConfig)
        if one.name in _OPTIONS
    ],
    bases=(FairseqDataclass,),
)


class FairseqRAdam(FairseqAdam):
    """Rectified Adam (Liu et al. 2020, https://arxiv.org/abs/1908.03265), as in torch."""

    supports_flat_params = True  # each weight is updated on its own

    def __init__(self, cfg: Any, params: Any) -> None:
        FairseqOptimizer.__init__(self, cfg)
        options = self.optimizer_config  # as fairseq reads them for its own
        self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **options)


def register_radam() -> None:
    """Add the optimizer ``radam`` to fairseq's registry, where it is missing."""
    if "radam" not in REGISTRIES["optimizer"]["registry"]:
        register_optimizer("radam", dataclass=FairseqRAdamConfig)(FairseqRAdam)
