"""ADMIN (Liu et al. 2020, https://arxiv.org/abs/2004.08249): post-norm models that train deep.

A sub-layer's output is LayerNorm(x · ω + f(x)), where ω is a vector that begins at the standard
deviation of the sum of all sub-layers before it. The authors' code measures ω in a separate run.
Here it is measured while the model is built, and kept in the model's options.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.data import data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from cape_plugins.fairseq.options import flag
from cape_plugins.fairseq.source_scale import loaded
from cape_plugins.fairseq.start import settle
from cape_plugins.host import with_class

# size of the measured batch, padding included; with 1000 tokens ω differs by a percent at most
PROFILED_TOKENS = 4096


@dataclass
class AdminConfig(FairseqDataclass):
    """The options of ADMIN."""

    admin_init: bool = field(
        default=False, metadata={"help": "ADMIN: scaled residuals, measured before training"}
    )
    admin_scales: Optional[str] = field(  # noqa: UP045 - OmegaConf 2.0 knows no `str | None`
        default=None,
        metadata={
            "help": "ADMIN: the scales, encoder first, with commas; default: measure on training "
            "data"
        },
    )


class Profile(list[float]):
    """ω of each residual of the encoder or the decoder, and one more value after the last."""

    def measure(self, scale: Tensor, x: Tensor, residual: Tensor) -> None:
        """Set ω of the next residual."""
        scale.fill_(self[-1])
        variance = (residual.float() * self[-1]).var(correction=0) + x.float().var(correction=0)
        self.append(float(variance.sqrt()))


class AdminLayer:
    """Mixed into a Transformer layer of fairseq: multiplies residuals by ω.

    Attributes:
        residual_scale: ω, (residuals, dim), ones at first; None without ``cfg.admin_init``.
        profile: measures ω, while a model is built.
    """

    residual_scale: nn.Parameter | None
    profile: Profile | None = None

    def __init__(self: Any, cfg: Any, *others: Any, **named: Any) -> None:
        super().__init__(cfg, *others, **named)  # type: ignore[call-arg]
        cross = getattr(self, "encoder_attn", None) is not None
        scale = nn.Parameter(torch.ones(3 if cross else 2, self.embed_dim))
        self.register_parameter("residual_scale", scale if cfg.admin_init else None)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer's, of a copy of itself, which counts the residuals of this forward."""
        now = self
        if self.residual_scale is not None:
            now = with_class(self, type(self), scales=iter(self.residual_scale.unbind()))
        return super(AdminLayer, now).forward(*args, **kwargs)  # type: ignore[misc]

    def residual_connection(self: Any, x: Tensor, residual: Tensor) -> Tensor:
        """fairseq calls this once for each residual of a forward."""
        if self.residual_scale is None:
            return super().residual_connection(x, residual)  # type: ignore[misc]
        scale = next(self.scales)
        if self.profile is not None:
            self.profile.measure(scale, x, residual)
        return x + residual * scale


class AdminModel:
    """Mixed into a model of fairseq whose layers are :class:`AdminLayer`: sets ω when it is built.

    Its options have those of :class:`AdminConfig`.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Any:
        """Check the options (name → value) of ADMIN, and those of the model.

        Raises:
            ValueError: ADMIN is on in a pre-norm model, scales are given without it, or an option
                of the model is wrong.
        """
        if options.get("admin_scales") and not options.get("admin_init"):
            raise ValueError("--admin-scales are for --admin-init: give both, or neither")
        for name in ("encoder_normalize_before", "decoder_normalize_before"):
            if options.get("admin_init") and options.get(name):
                raise ValueError(
                    f"--admin-init is for post-norm models, {flag(name)} makes this one pre-norm: "
                    "leave out one of the two"
                )
        return super().check_options(options)  # type: ignore[misc]

    @classmethod
    def initialise(cls, model: nn.Module, cfg: Any, task: Any) -> None:
        """:func:`initialise`."""
        initialise(model, cfg, task)


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
    layers: list[Any] = [each for each in model.modules() if isinstance(each, AdminLayer)]
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
    profiles = {decodes: Profile([1.0]) for decodes in (False, True)}
    layers: list[Any] = [each for each in model.modules() if isinstance(each, AdminLayer)]
    for layer in layers:
        layer.profile = profiles[hasattr(layer, "encoder_attn")]
    for module in model.modules():
        if isinstance(module, LayerDropModuleList):
            module.training = False  # else it would drop layers, which would not be measured
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model(**sample["net_input"])
    for layer in layers:
        del layer.profile
    model.train()
    return [scale for measured in profiles.values() for scale in measured[:-1]]


def median_batch(task: Any, split: str, tokens: int) -> dict[str, Any]:
    """A batch of about ``tokens`` tokens, in training sentences of the median length.

    Raises:
        ValueError: the training set is missing or empty.
    """
    try:
        with loaded(task, split) as data, data_utils.numpy_seed(1):
            order = data.ordered_indices()
            longer = order[len(order) // 2 :]
            sentences = max(1, tokens // data.num_tokens(int(longer[0])))
            return data.collater([data[int(index)] for index in longer[:sentences]])
    except (FileNotFoundError, IndexError, ValueError) as error:
        raise ValueError(
            "--admin-init measures residuals on the training set, which is missing or empty "
            f"({error}): put it there, or give --admin-scales"
        ) from error
