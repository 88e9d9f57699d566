"""fairseq's Transformer layers with positions in self-attention.

fairseq's encoder and decoder have no argument of their layers for positions: :class:`Handed` gives
each layer one more. A layer of fairseq hands one argument on to its self-attention unread, the mask
of padding: our layer puts positions beside it. As arguments, activation checkpointing keeps both.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention, transformer_layer
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from cape_plugins.attention import Cache, Given, PositionalAttention


class Handed:
    """The layers of an encoder or a decoder in one forward: each gets positions when called."""

    def __init__(self, layers: nn.ModuleList, given: Given) -> None:
        self.layers, self.given = layers, given

    def __iter__(self) -> Iterator[Any]:
        return (functools.partial(layer, given=self.given) for layer in self.layers)

    def __getitem__(self, index: int) -> nn.Module:
        return self.layers[index]  # fairseq 0.12.2 asks the first for its fast path


class FairseqCapeAttention(MultiheadAttention):
    """fairseq's self-attention with positions in it.

    ``positional`` is the variant's part; checkpoints contain this name. In step-by-step decoding
    the query is the last of the tokens so far, and earlier keys are kept as they were embedded.
    """

    def __init__(self, *sizes: int, positional: PositionalAttention, **options: Any) -> None:
        super().__init__(*sizes, self_attention=True, **options)
        self.positional = positional

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: tuple[Tensor | None, Given],
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Attend, (T, B, dim) → (T, B, dim); no weights are returned.

        Beside fairseq's mask of padding stand the positions, whose mask hides later tokens too: so
        ``attn_mask`` is not read. Nor are ``key`` and ``value``, as all is self-attention.
        """
        padding, given = key_padding_mask
        q, k, v = (self._split(one(query)) for one in (self.q_proj, self.k_proj, self.v_proj))
        cache = None
        if incremental_state is not None:  # the last query sees all but padding
            padding, cache = self._continue(incremental_state, k, padding)
            seen = None if padding is None else ~padding[:, None, None].bool()
            given = given.seeing(seen, q.dtype)
        elif padding is None and given.mask is not None and given.mask.shape[-2] == 1:
            given = given._replace(mask=None)  # it hides padding alone, and fairseq has found none
        drop = self.dropout_module
        dropout = drop.p if drop.training or drop.apply_during_inference else 0.0
        out, _ = self.positional(q, k, v, given, dropout, cache=cache)
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2)), None  # (T, B, dim)

    def _split(self, x: Tensor) -> Tensor:
        """(T, B, heads · head_dim) → (B, heads, T, head_dim)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _continue(
        self, incremental_state: dict[str, Any], new: Tensor, padding: Tensor | None
    ) -> tuple[Tensor | None, Cache]:
        """Padding of earlier steps and of this one, and what remembers keys, as fairseq does."""
        saved = self._get_input_buffer(incremental_state)
        before = saved.get("prev_key")
        padding = self._append_prev_key_padding_mask(
            key_padding_mask=padding,
            prev_key_padding_mask=saved.get("prev_key_padding_mask"),
            batch_size=new.shape[0],
            src_len=new.shape[2] + (0 if before is None else before.shape[2]),
            static_kv=False,
        )

        def cache(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if before is not None:
                k = torch.cat([before, k], dim=2)
                v = torch.cat([saved["prev_value"], v], dim=2)
            saved.update(prev_key=k, prev_value=v, prev_key_padding_mask=padding)
            self._set_input_buffer(incremental_state, saved)
            return k, v

        return padding, cache


class TakesPositions:
    """Mixed into a layer of fairseq: its forward takes positions.

    ``positional`` puts them into its self-attention; None leaves fairseq's own attention.

    Raises:
        ValueError: an option of fairseq's wants another self-attention than the variant's.
    """

    padding: str  # the layer's argument that reaches self-attention as key_padding_mask

    def __init__(self: Any, cfg: Any, *others: Any, positional: PositionalAttention | None) -> None:
        super().__init__(cfg, *others)  # type: ignore[call-arg]
        self.attends = positional is not None
        if positional is None:
            return
        theirs = self.self_attn
        if theirs.use_xformers or not theirs.self_attention:
            option = "xFormers" if theirs.use_xformers else "--cross-self-attention"
            raise ValueError(
                f"{option} does not go with --pos {cfg.pos}, which attends in a way of its own: "
                "leave out one of the two"
            )
        self.self_attn = FairseqCapeAttention(
            self.embed_dim,
            theirs.num_heads,
            positional=positional,
            dropout=cfg.attention_dropout,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def forward(self, *args: Any, given: Given | None = None, **named: Any) -> Any:
        """The layer's; ``given`` is for self-attention that is ours, and has its mask in it."""
        if self.attends:
            named[self.padding] = named[self.padding], given
        return super().forward(*args, **named)  # type: ignore[misc]


class FairseqCapeEncoderLayer(TakesPositions, transformer_layer.TransformerEncoderLayerBase):
    """fairseq's encoder layer without the fast path of version 0.12.2.

    The fast path fails on torch ≥ 1.13. Its eight copies of weights are removed too: only that
    version's checkpoints would contain them.
    """

    padding = "encoder_padding_mask"
    _load_from_state_dict = nn.Module._load_from_state_dict

    def __init__(self, cfg: TransformerConfig, **options: Any) -> None:
        super().__init__(cfg, **options)
        self.can_use_fastpath = False
        for copied in ("in_proj", "out_proj", "fc1", "fc2"):
            for kind in ("weight", "bias"):
                self._parameters.pop(f"{copied}_{kind}", None)


class FairseqCapeDecoderLayer(TakesPositions, transformer_layer.TransformerDecoderLayerBase):
    """fairseq's decoder layer."""

    padding = "self_attn_padding_mask"


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP, as fairseq wraps its own layers."""
    checkpointed = cfg.checkpoint_activations or cfg.offload_activations
    if checkpointed:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if checkpointed else cfg.min_params_to_wrap)
