"""fairseq's Transformer layers with positions in self-attention.

fairseq's forwards have no argument for positions. So they are kept in :data:`POSITIONS` during one
forward of the encoder or the decoder, in one thread. Before each layer :func:`hand_positions`
passes them as an argument, because activation checkpointing keeps arguments for the backward, but
not context variables. The layer sets :data:`POSITIONS` from it for its self-attention.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention, transformer_layer
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from cape_plugins.attention import NOTHING, Given, PositionalAttention
from cape_plugins.learned import learned, with_learned


class StackPositions(NamedTuple):
    """What the core's Positions made for the encoder or the decoder, once in a forward.

    Attributes:
        embedding: (B or 1, N, dim), in the model's dtype; None where the variant adds nothing.
        given: what self-attention gets.
    """

    embedding: Tensor | None
    given: Given


POSITIONS: ContextVar[StackPositions | None] = ContextVar("POSITIONS", default=None)
_LEARNED = "given_"  # before the names of a layer's arguments


@contextmanager
def during(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a variable in this thread until the end of a ``with``."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def hand_positions(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Forward pre-hook of a layer: positions become its argument ``given``.

    What needs a gradient in them becomes arguments too: fairseq's checkpointing is reentrant.
    """
    if (stack := POSITIONS.get()) is not None:
        found = {_LEARNED + name: x for name, x in learned(stack.given).items()}
        kwargs = {"given": stack.given, **found, **kwargs}
    return args, kwargs


class FairseqCapeAttention(MultiheadAttention):
    """fairseq's self-attention with positions in it; it reads them from :data:`POSITIONS`.

    ``positional`` is the variant's part; checkpoints contain this name. In step-by-step decoding
    the query is the last of the tokens so far, and earlier keys are kept as they were embedded.
    """

    def __init__(self, *sizes: int, positional: PositionalAttention, **options: Any) -> None:
        super().__init__(*sizes, self_attention=True, **options)
        self.positional = positional

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Attend, (T, B, dim) → (T, B, dim); no weights are returned.

        The arguments are fairseq's; ``key`` and ``value`` are not read, as all is self-attention.
        """
        stack, padding = POSITIONS.get(), key_padding_mask
        given = NOTHING if stack is None else stack.given
        q, k = self._split(self.q_proj(query)), self._split(self.k_proj(query))
        # new keys are at the positions of the queries, in decoding too
        q, k = self.positional.embed_both(q, k, given._replace(keys=given.queries))
        v = self._split(self.v_proj(query))  # (B, heads, T, head_dim)
        if incremental_state is not None:
            k, v, padding = self._continue(incremental_state, k, v, padding)
        if stack is None or incremental_state is not None:  # the last query sees all but padding
            seen = None if padding is None else ~padding[:, None, None].bool()
            given = given.seeing(seen, q.dtype)
        elif padding is None and given.mask is not None and given.mask.shape[-2] == 1:
            given = given._replace(mask=None)  # it hides padding alone, and fairseq has found none
        given = given.seeing(attn_mask, q.dtype)  # (B or 1, 1, T or 1, S)
        drop = self.dropout_module
        dropout = drop.p if drop.training or drop.apply_during_inference else 0.0
        out, _ = self.positional.attend(q, k, v, given, dropout)
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2)), None  # (T, B, dim)

    def _split(self, x: Tensor) -> Tensor:
        """(T, B, heads · head_dim) → (B, heads, T, head_dim)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _continue(
        self, incremental_state: dict[str, Any], k: Tensor, v: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Put earlier steps before this one, and remember them, as fairseq does."""
        saved = self._get_input_buffer(incremental_state)
        if saved.get("prev_key") is not None:
            k = torch.cat([saved["prev_key"], k], dim=2)
            v = torch.cat([saved["prev_value"], v], dim=2)
        padding = self._append_prev_key_padding_mask(
            key_padding_mask=padding,
            prev_key_padding_mask=saved.get("prev_key_padding_mask"),
            batch_size=k.shape[0],
            src_len=k.shape[2],
            static_kv=False,
        )
        saved.update(prev_key=k, prev_value=v, prev_key_padding_mask=padding)
        self._set_input_buffer(incremental_state, saved)
        return k, v, padding


class TakesPositions:
    """Mixed into a layer of fairseq: its forward takes positions.

    ``positional`` puts them into its self-attention; None leaves fairseq's own attention.

    Raises:
        ValueError: an option of fairseq's wants another self-attention than the variant's.
    """

    def __init__(self: Any, cfg: Any, *others: Any, positional: PositionalAttention | None) -> None:
        super().__init__(cfg, *others)  # type: ignore[call-arg]
        if positional is not None:
            theirs = self.self_attn
            for option, given in (
                ("--cross-self-attention", not theirs.self_attention),
                ("xFormers", theirs.use_xformers),
            ):
                if given:
                    raise ValueError(
                        f"{option} does not go with --pos {cfg.pos}, which attends in a way of its "
                        "own: leave out one of the two"
                    )
            self.self_attn = FairseqCapeAttention(
                self.embed_dim,
                theirs.num_heads,
                positional=positional,
                dropout=cfg.attention_dropout,
                q_noise=self.quant_noise,
                qn_block_size=self.quant_noise_block_size,
            )
        self.register_forward_pre_hook(hand_positions, with_kwargs=True)

    def forward(self, *args: Any, given: Given | None = None, **kwargs: Any) -> Any:
        """The layer's; ``given`` is for its self-attention, and replaces fairseq's own masks."""
        names = [name for name in kwargs if name.startswith(_LEARNED)]
        found = {name.removeprefix(_LEARNED): kwargs.pop(name) for name in names}
        if given is not None:
            given = with_learned(given, found)
        with during(POSITIONS, None if given is None else StackPositions(None, given)):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class FairseqCapeEncoderLayer(TakesPositions, transformer_layer.TransformerEncoderLayerBase):
    """fairseq's encoder layer without the fast path of version 0.12.2.

    The fast path fails on torch ≥ 1.13. Its eight copies of weights are removed too: only that
    version's checkpoints would contain them.
    """

    _load_from_state_dict = nn.Module._load_from_state_dict

    def __init__(self, cfg: TransformerConfig, **options: Any) -> None:
        super().__init__(cfg, **options)
        self.can_use_fastpath = False
        for copied in ("in_proj", "out_proj", "fc1", "fc2"):
            for kind in ("weight", "bias"):
                self._parameters.pop(f"{copied}_{kind}", None)


class FairseqCapeDecoderLayer(TakesPositions, transformer_layer.TransformerDecoderLayerBase):
    """fairseq's decoder layer."""


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP, as fairseq wraps its own layers."""
    checkpointed = cfg.checkpoint_activations or cfg.offload_activations
    if checkpointed:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if checkpointed else cfg.min_params_to_wrap)
