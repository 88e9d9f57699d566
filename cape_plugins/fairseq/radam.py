"""RAdam, with which ADMIN's recipes train, the paper's translation models too; fairseq has none."""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, List  # noqa: UP035 - OmegaConf 2.0 knows no `list[float]`

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from fairseq.registry import REGISTRIES
from omegaconf import II

RADAM = "radam"


@dataclass
class RAdamConfig(FairseqDataclass):
    """The options of fairseq's ``adam`` that apply, by the same names (as in ADMIN's recipes)."""

    adam_betas: Any = field(default="(0.9, 0.999)", metadata={"help": "betas for RAdam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay"})
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


class FairseqRAdam(FairseqAdam):
    """Rectified Adam (Liu et al. 2020, https://arxiv.org/abs/1908.03265), as in torch.

    Args:
        cfg: the options of :class:`RAdamConfig`, as OmegaConf's DictConfig.
        params: what to optimise.

    Raises:
        ValueError: an option is out of range.
    """

    supports_flat_params = True  # each weight is updated on its own

    def __init__(self, cfg: Any, params: Any) -> None:
        FairseqOptimizer.__init__(self, cfg)
        check_radam(cfg)
        options = self.optimizer_config  # as fairseq reads them for its own
        self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **options)


def check_radam(options: Mapping[str, Any]) -> None:
    """Raise ValueError where options of :class:`RAdamConfig`, or their defaults, are wrong."""
    default = RAdamConfig()
    names = ("adam_betas", "adam_eps", "weight_decay")
    given = [options.get(name, getattr(default, name)) for name in names]
    try:
        first, second = ast.literal_eval(str(given[0]))
        valid = 0 <= first < 1 and 0 <= second < 1 and all(0 <= x < math.inf for x in given[1:])
    except (SyntaxError, TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            "radam wants --adam-betas of two numbers in [0, 1), as '(0.9, 0.98)', and finite "
            f"--adam-eps and --weight-decay ≥ 0, got {given[0]!r}, {given[1]!r} and {given[2]!r}"
        )


def register_radam() -> None:
    """Add the optimizer to fairseq's registry, where it is missing."""
    if RADAM not in REGISTRIES["optimizer"]["registry"]:
        register_optimizer(RADAM, dataclass=RAdamConfig)(FairseqRAdam)
