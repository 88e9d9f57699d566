"""ADMIN (Liu et al. 2020, https://arxiv.org/abs/2004.08249): post-norm models that train deep.

A sub-layer's output is LayerNorm(x · ω + f(x)), where ω is a vector that begins at the standard
deviation of the sum of all sub-layers before it. The authors' code measures ω in a separate run.
Here it is measured while the model is built, and kept in the model's options.
"""

import math
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from cape_plugins.fairseq.config import settle
from cape_plugins.fairseq.layers import (
    PROFILES,
    CapeDecoderLayer,
    CapeEncoderLayer,
    CapeLayer,
    during,
)
from cape_plugins.fairseq.training_set import median_batch

# size of the measured batch, padding included; with 1000 tokens ω differs by a percent at most
PROFILED_TOKENS = 4096


class _Profile(list[float]):
    """ω of each residual of the encoder or the decoder, and one more value after the last."""

    def measure(self, scale: Tensor, x: Tensor, residual: Tensor) -> None:
        scale.fill_(self[-1])
        variance = (residual.float() * self[-1]).var(correction=0) + x.float().var(correction=0)
        self.append(float(variance.sqrt()))


def initialise(model: nn.Module, cfg: Any, task: Any) -> None:
    """Set ω of a model on the CPU, if ``admin_init`` is on in its options ``cfg``.

    ω is taken from ``cfg.admin_scales`` if given, else from the checkpoint that fairseq is about to
    start from, else measured on the task's training set and stored in ``cfg.admin_scales``.

    Raises:
        ValueError: the training set is needed and cannot be read, or the number of given scales is
            not the number of residuals.
    """
    if not cfg.admin_init:
        return
    if not cfg.admin_scales:
        settle(cfg, "admin_scales", lambda split: _measure(model, task, split))
    layers: list[Any] = [each for each in model.modules() if isinstance(each, CapeLayer)]
    vectors = [vector for layer in layers for vector in layer.residual_scale]
    try:
        scales = [float(scale) for scale in cfg.admin_scales.split(",")]
    except ValueError:
        scales = []
    if len(scales) != len(vectors) or not all(0 < scale < math.inf for scale in scales):
        raise ValueError(
            f"--admin-scales must be {len(vectors)} positive numbers with commas between them, one "
            "for each residual: 2 in each layer of the encoder, 3 of the decoder (2 without an "
            f"encoder), got {cfg.admin_scales!r}"
        )
    with torch.no_grad():
        for vector, scale in zip(vectors, scales, strict=True):
            vector.fill_(scale)


def _measure(model: nn.Module, task: Any, split: str) -> str:
    measured = profile(model, median_batch(task, split, PROFILED_TOKENS))
    scales = ",".join(f"{scale:.6g}" for scale in measured)
    if distributed_utils.get_global_world_size() > 1:  # machines may round differently
        group = distributed_utils.get_global_group()
        scales = distributed_utils.broadcast_object(scales, src_rank=0, group=group)
    return scales


def profile(model: nn.Module, sample: dict[str, Any]) -> list[float]:
    """Measure ω of each residual, the encoder's first, and set it.

    It runs one forward of a fairseq batch, in training mode and without gradients. The state of
    the CPU's random numbers is restored afterwards.
    """
    for module in model.modules():
        if isinstance(module, LayerDropModuleList):
            module.training = False  # else it would drop layers, which would not be measured
    profiles = {kind: _Profile([1.0]) for kind in (CapeEncoderLayer, CapeDecoderLayer)}
    with during(PROFILES, profiles), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model(**sample["net_input"])
    model.train()
    return [scale for measured in profiles.values() for scale in measured[:-1]]
