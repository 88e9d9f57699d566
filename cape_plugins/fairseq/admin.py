"""ADMIN (Liu et al. 2020, https://arxiv.org/abs/2004.08249): post-norm models that train deep.

A sub-layer's output is LayerNorm(x · ω + f(x)), where ω is a vector that begins at the standard
deviation that all sub-layers before it have added up to. Their code (Transformer-Clinic) measures
it in a run of its own, writes a file and starts again; here it is measured while the model is
built, before there is an optimizer to copy weights, and kept in the model's options.
"""

import logging
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from cape_plugins.fairseq.config import store_option

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
        variance = (residual.float() * self.next).var() + x.float().var()
        self.next = float(variance.sqrt())


def initialise(model: nn.Module, cfg: Any, task: Any) -> None:
    """Set ω, if ``cfg.admin_init``; what was measured is stored in ``cfg.admin_scales``.

    Scales that are given, or in the checkpoint that fairseq is about to resume from, are taken
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
        scales = _resumed_scales(cfg) or _format(profile(model, _training_batch(cfg, task)))
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


def parse_scales(scales: str) -> list[float]:
    """Read ``--admin-scales``.

    Raises:
        ValueError: not positive numbers with commas between them.
    """
    try:
        numbers = [float(number) for number in scales.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(
            f"--admin-scales must be positive numbers with commas between them, got {scales!r}"
        )
    return numbers


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


def _resumed_scales(cfg: Any) -> str | None:
    """The scales in the checkpoint that fairseq-train will resume from, if there is one."""
    checkpoint = (cfg._get_parent() or {}).get("checkpoint")
    if checkpoint is None:
        return None
    path = checkpoint.restore_file
    if path == "checkpoint_last.pt":  # fairseq's default, the only name that it looks for there
        path = f"{checkpoint.save_dir}/{path}"
    if not PathManager.exists(path):
        return None
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    return (state.get("cfg") or {}).get("model", {}).get("admin_scales")


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
