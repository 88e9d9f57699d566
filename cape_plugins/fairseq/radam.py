"""RAdam, the optimizer of ADMIN's recipes and of the paper's translation models.

fairseq has none of its own.
"""

import ast
import math
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.registry import REGISTRIES

RADAM = "radam"


class FairseqRAdam(FairseqAdam):
    """Rectified Adam (Liu et al. 2020, https://arxiv.org/abs/1908.03265), as in torch."""

    supports_flat_params = True  # each weight is updated on its own

    def __init__(self, cfg: Any, params: Any) -> None:
        FairseqOptimizer.__init__(self, cfg)
        check_radam(cfg)
        options = self.optimizer_config  # as fairseq reads them for its own
        self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **options)


def check_radam(options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option of fairseq's ``adam`` is out of range or not for radam."""
    if options.get("use_old_adam") or options.get("fp16_adam_stats"):
        raise ValueError("--use-old-adam and --fp16-adam-stats are for adam, radam has neither")
    betas, *others = (options[name] for name in ("adam_betas", "adam_eps", "weight_decay"))
    try:
        first, second = ast.literal_eval(str(betas))
        valid = 0 <= first < 1 and 0 <= second < 1 and all(0 <= x < math.inf for x in others)
    except (SyntaxError, TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            "radam wants --adam-betas of two numbers in [0, 1), as '(0.9, 0.98)', and finite "
            f"--adam-eps and --weight-decay ≥ 0, got {betas!r} and {others}"
        )


def register_radam() -> None:
    """Add the optimizer to fairseq's registry, where it is missing."""
    if RADAM not in REGISTRIES["optimizer"]["registry"]:
        register_optimizer(RADAM, dataclass=FairseqAdamConfig)(FairseqRAdam)
