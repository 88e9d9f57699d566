"""ADMIN (Liu et al. 2020, https://arxiv.org/abs/2004.08249): post-norm models that train deep.

A sub-layer's output is LayerNorm(x · ω + f(x)), where ω is a vector that begins at the standard
deviation that all sub-layers before it have added up to. Their code (Transformer-Clinic) measures
it in a run of its own, writes a file and starts again; here it is measured while the model is
built, before there is an optimizer to copy weights, and kept in the model's options.
"""

import itertools
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from cape_plugins.fairseq.checks import parse_scales
from cape_plugins.fairseq.config import plain_options, settle
from cape_plugins.fairseq.layers import CapeLayer
from cape_plugins.fairseq.training_set import median_batch

# of the batch that is measured, padding included; a thousand give the same to a percent
PROFILED_TOKENS = 4096


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
    """Set ω, if ``admin_init``; what was measured is stored in ``cfg.admin_scales``.

    Scales that are given, or in the checkpoint that fairseq is about to start from, are taken
    instead, so that nothing is measured twice.

    Args:
        model: ours, on the CPU.
        cfg: its options.
        task: gives the training set.

    Raises:
        ValueError: the training set is needed and cannot be read.
    """
    if not cfg.admin_init:
        return
    if not cfg.admin_scales:
        settle(cfg, "admin_scales", lambda split: _measure(model, task, split))
    vectors = [row for layers in _stacks(model) for layer in layers for row in layer.residual_scale]
    with torch.no_grad():
        scales = parse_scales(cfg.admin_scales, plain_options(cfg))
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

    That is one forward of a batch of fairseq in training mode, without gradients, which leaves the
    state of the random numbers as it was.
    """
    training, profiles = model.training, []
    try:
        model.train()
        for layers in _stacks(model):
            profiles.append(_Profile())
            for layer in layers:
                layer.profile = profiles[-1]
        for module in model.modules():
            if isinstance(module, LayerDropModuleList):
                module.training = False  # else it leaves out layers, which are not measured then
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(**sample["net_input"])
    finally:
        model.train(training)
        for layer in itertools.chain(*_stacks(model)):
            layer.profile = None
    return [scale for one in profiles for scale in one.scales]


def _stacks(model: nn.Module) -> list[list[Any]]:
    """The layers of encoder and decoder, found inside whatever wraps them."""
    sides = [getattr(model, side) for side in ("encoder", "decoder") if hasattr(model, side)]
    return [[m for m in side.modules() if isinstance(m, CapeLayer)] for side in sides]
