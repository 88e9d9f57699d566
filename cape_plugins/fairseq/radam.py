"""The optimizer ``radam``, which the paper's translation models were trained with."""

import ast
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, List  # noqa: UP035 - OmegaConf 2.0 knows no `list[float]`

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.registry import REGISTRIES
from omegaconf import II

NAME = "radam"


@dataclass
class RAdamConfig(FairseqDataclass):
    """The options of fairseq's ``adam`` that apply, by the same names (as in ADMIN's recipes)."""

    adam_betas: Any = field(default="(0.9, 0.999)", metadata={"help": "betas for RAdam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay"})
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


class FairseqRAdam(FairseqOptimizer):
    """Rectified Adam (Liu et al. 2020, https://arxiv.org/abs/1908.03265), as in torch.

    Args:
        cfg: :class:`RAdamConfig`.
        params: what to optimise.

    Raises:
        ValueError: ``adam_betas`` are not two numbers in [0, 1).
    """

    def __init__(self, cfg: RAdamConfig, params: Any) -> None:
        super().__init__(cfg)
        self._optimizer = torch.optim.RAdam(
            params, decoupled_weight_decay=True, **self.optimizer_config
        )

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """What overrides the settings in a checkpoint when training resumes from it."""
        lr = self.cfg.lr
        return {
            "lr": lr[0] if isinstance(lr, Collection) else lr,
            "betas": _betas(self.cfg.adam_betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    @property
    def supports_flat_params(self) -> bool:
        """Each weight is updated on its own."""
        return True


def _betas(given: Any) -> tuple[float, float]:
    try:
        first, second = ast.literal_eval(given) if isinstance(given, str) else given
        betas = float(first), float(second)
    except (SyntaxError, TypeError, ValueError):
        betas = (-1.0, -1.0)
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(
            f"--adam-betas must be two numbers in [0, 1), as '(0.9, 0.98)', got {given!r}"
        )
    return betas


def register_radam() -> None:
    """Add the optimizer to fairseq's registry, where it is missing."""
    if NAME not in REGISTRIES["optimizer"]["registry"]:
        register_optimizer(NAME, dataclass=RAdamConfig)(FairseqRAdam)
