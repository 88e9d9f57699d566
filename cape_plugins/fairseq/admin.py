"""ADMIN (Liu et al. 2020, https://arxiv.org/abs/2004.08249): post-norm models that train deep.

A sub-layer's output is LayerNorm(x · ω + f(x)), where ω is a vector that begins at the standard
deviation that all sub-layers before it have added up to. Their code (Transformer-Clinic) measures
it in a run of its own, writes a file and starts again; here it is measured while the model is
built, before there is an optimizer to copy weights, and kept in the model's options. Its recipes
train with RAdam, as the paper's translation models; fairseq has none.
"""

import ast
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, List  # noqa: UP035 - OmegaConf 2.0 knows no `list[float]`

import torch
from fairseq.data import data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.modules import LayerDropModuleList
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.registry import REGISTRIES
from omegaconf import II
from torch import Tensor, nn

from cape_plugins.fairseq.config import checkpoint_options, parse_scales, store_option

logger = logging.getLogger(__name__)

# of the batch that is measured, padding included; a thousand give the same to a percent
PROFILED_TOKENS = 4096


class ScaledResiduals:
    """Mixed into a layer of fairseq: residuals are multiplied by learnable ω.

    Attributes:
        residual_scale: (sub-layers, d), ones at first; None without ADMIN.
    """

    residual_scale: nn.Parameter | None

    def scale_residuals(self, sublayers: int, dim: int) -> None:
        """Make ω for so many residuals; for none of them if 0."""
        self._profile: _Profile | None = None
        scale = nn.Parameter(torch.ones(sublayers, dim)) if sublayers else None
        self.register_parameter("residual_scale", scale)  # type: ignore[attr-defined]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's."""
        self._sublayer = 0  # here, since activation checkpointing calls nothing but forward
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def residual_connection(self, x: Tensor, residual: Tensor) -> Tensor:
        """fairseq calls this once in each sub-layer."""
        if self.residual_scale is None:
            return super().residual_connection(x, residual)  # type: ignore[misc]
        scale = self.residual_scale[self._sublayer]
        self._sublayer += 1
        if self._profile is not None:
            self._profile.measure(scale, x, residual)
        return x + residual * scale


class _Profile:
    """ω of one stack of layers, each from what comes before it."""

    def __init__(self) -> None:
        self.scales: list[float] = []
        self.next = 1.0

    def measure(self, scale: Tensor, x: Tensor, residual: Tensor) -> None:
        scale.fill_(self.next)
        self.scales.append(self.next)
        variance = (residual.float() * self.next).var(correction=0) + x.float().var(correction=0)
        self.next = float(variance.sqrt())


def initialise(model: nn.Module, cfg: Any, task: Any) -> None:
    """Set ω, if ``cfg.admin_init``; what was measured is stored in ``cfg.admin_scales``.

    Scales that are given, or in the checkpoint that fairseq is about to start from, are taken
    instead, so that nothing is measured twice.

    Args:
        model: ours, on the CPU.
        cfg: its options, part of fairseq's whole config where there is one.
        task: gives the training set.

    Raises:
        ValueError: the scales do not fit the model, or no training data could be read.
    """
    if "admin_init" not in cfg or not cfg.admin_init:  # absent in checkpoints from before it
        return
    if not cfg.admin_scales:
        scales = checkpoint_options(cfg).get("admin_scales") or _format(
            profile(model, _training_batch(cfg, task))
        )
        if distributed_utils.get_global_world_size() > 1:  # machines may round differently
            group = distributed_utils.get_global_group()
            scales = distributed_utils.broadcast_object(scales, src_rank=0, group=group)
        store_option(cfg, "admin_scales", scales)
        logger.info(f"ADMIN: residual scales {scales}")
    set_scales(model, parse_scales(cfg.admin_scales))


def profile(model: nn.Module, sample: dict[str, Any]) -> list[float]:
    """Measure ω on a batch and set it: one forward in training mode, without gradients.

    The state of the random numbers is left as it was.

    Args:
        model: one of ours with ``admin_init``.
        sample: a batch of fairseq.

    Returns:
        ω of each residual in order, the encoder's first.
    """
    training = model.training
    profiles = []
    for layers in _stacks(model):
        profiles.append(_Profile())
        for layer in layers:
            layer._profile = profiles[-1]
    # layers that LayerDrop left out would not be measured
    drops = [(m, m.p) for m in model.modules() if isinstance(m, LayerDropModuleList)]
    try:
        for module, _ in drops:
            module.p = -1.0
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.train()
            model(**sample["net_input"])
    finally:
        model.train(training)
        for module, p in drops:
            module.p = p
        for layers in _stacks(model):
            for layer in layers:
                layer._profile = None
    return [scale for stack in profiles for scale in stack.scales]


def set_scales(model: nn.Module, scales: list[float]) -> None:
    """Set ω of each residual.

    Raises:
        ValueError: the model has another number of residuals.
    """
    vectors = [row for layers in _stacks(model) for layer in layers for row in layer.residual_scale]
    if len(vectors) != len(scales):
        raise ValueError(
            f"--admin-scales holds {len(scales)} numbers, but this model has {len(vectors)} "
            "residuals: 2 in each layer of the encoder, 3 of the decoder (2 without an encoder)"
        )
    with torch.no_grad():
        for vector, scale in zip(vectors, scales, strict=True):
            vector.fill_(scale)


def _format(scales: list[float]) -> str:
    return ",".join(f"{scale:.6g}" for scale in scales)


def _stacks(model: nn.Module) -> list[list[Any]]:
    """The layers of encoder and decoder, found inside whatever wraps them."""
    sides = [getattr(model, side, None) for side in ("encoder", "decoder")]
    return [
        [layer for layer in side.modules() if isinstance(layer, ScaledResiduals)]
        for side in sides
        if side is not None
    ]


def _training_batch(cfg: Any, task: Any) -> dict[str, Any]:
    """A batch of training sentences of about the median length.

    (The first batch of the trainer needs its options and its sorting of the whole set; what is
    measured are standard deviations over thousands of tokens.)
    """
    whole = cfg._get_parent() or {}
    if (whole.get("distributed_training") or {}).get("ddp_backend") == "fully_sharded":
        raise ValueError(
            "--admin-init cannot be profiled with --ddp-backend fully_sharded: run one update "
            "without it, and give the scales that are logged as --admin-scales"
        )
    split = (whole.get("dataset") or {}).get("train_subset", "train")
    datasets = getattr(task, "datasets", {})
    loaded = split in datasets
    try:
        if not loaded:
            task.load_dataset(split, epoch=1)
        data = task.dataset(split)
    except FileNotFoundError as error:
        raise ValueError(
            f"--admin-init measures residuals on the training set, which could not be read "
            f"({error}): put it there, or give --admin-scales"
        ) from error
    if len(data) == 0:
        raise ValueError("--admin-init measures residuals on the training set, which is empty")
    with data_utils.numpy_seed(1):
        order = data.ordered_indices()
    chosen: list[int] = []
    for index in order[len(order) // 2 :]:
        chosen.append(int(index))
        if len(chosen) * data.num_tokens(int(index)) >= PROFILED_TOKENS:
            break
    batch = data.collater([data[index] for index in chosen])
    if not loaded:
        del datasets[split]  # the trainer loads it with its own settings
    return batch


RADAM = "radam"


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
            "lr": lr[0] if isinstance(lr, Sequence) else lr,
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
    if RADAM not in REGISTRIES["optimizer"]["registry"]:
        register_optimizer(RADAM, dataclass=RAdamConfig)(FairseqRAdam)
