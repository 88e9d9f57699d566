"""Attention of transformers' layers with a variant's positions."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.eurobert.modeling_eurobert import EuroBertAttention
from transformers.models.llama.modeling_llama import LlamaAttention, eager_attention_forward

from cape_plugins.attention import Given, PositionalAttention
from cape_plugins.transformers.relies import NAMES_OF_CACHE


def name_of_cache(forward: Any) -> str:
    """What a method of transformers calls the cache.

    Raises:
        ImportError: it has another name for it.
    """
    names = inspect.signature(forward).parameters
    for name in NAMES_OF_CACHE:
        if name in names:
            return name
    raise ImportError(
        f"{forward.__qualname__} of the transformers that is installed takes no argument "
        f"{' or '.join(NAMES_OF_CACHE)}: pip install 'cape-plugins[transformers]'"
    )


_CACHE = name_of_cache(LlamaAttention.forward)


class CapeAttention:
    """Mixed into transformers' attention: the variant's, or theirs where nothing is added."""

    positional: PositionalAttention | None  # None: transformers' own
    adds_to_scores: bool

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: None = None,
        attention_mask: Tensor | None = None,
        *,
        given: Given,
        keys_to: Cache | None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As transformers'; keys are cached with their positions embedded.

        ``given`` and ``keys_to``, the cache, come from our model by names of ours: a name that
        transformers changes cannot lose them.
        """
        named.pop(_CACHE, None)  # the same cache, or None
        if getattr(self, "_is_replica", False) and vars(self).get("positional") is not None:
            raise ValueError(
                "a variant that is one module in all layers is not copied by nn.DataParallel: "
                "train by DistributedDataParallel (torchrun), or on one GPU"
            )
        shape = hidden_states.shape[:-1]
        query, key, value = (
            project(hidden_states).view(*shape, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropout = self.attention_dropout if self.training else 0.0
        implementation = self.config._attn_implementation

        def theirs(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
            how = named | dict(dropout=dropout, scaling=self.scaling)
            out, weights = attend(self, query, key, value, attention_mask, **how)
            return out.transpose(1, 2), weights

        def cached(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            if keys_to is None:
                return key, value
            return keys_to.update(key, value, self.layer_idx)

        if self.positional is None:
            out, weights = theirs(query, *cached(key, value))
        else:
            attend = None if self.adds_to_scores else theirs
            need_weights = implementation == "eager"
            out, weights = self.positional(
                query, key, value, given, dropout, need_weights, cache=cached, attend=attend
            )
        out = out.transpose(1, 2)
        return self.o_proj(out.reshape(*shape, -1).contiguous()), weights


class CapeLlamaAttention(CapeAttention, LlamaAttention):
    """Llama's attention with a variant's positions."""


class CapeEuroBertAttention(CapeAttention, EuroBertAttention):
    """EuroBERT's attention with a variant's positions."""


class NoTable(nn.Module):
    """In place of transformers' rotary table, which nobody reads here."""

    def forward(self, *_: Any, **__: Any) -> None:
        """Nothing."""


def check_heads(attention: PositionalAttention, heads_of_keys: int) -> None:
    """Raise ValueError if a variant has parameters of each head, and keys have fewer."""
    heads = attention.sizes.heads
    if heads_of_keys == heads:
        return
    held = [*attention.parameters(), *attention.buffers()]
    device = held[0].device if held else torch.device("cpu")
    where = torch.zeros(1, 1, 1, device=device)
    one = torch.zeros(1, heads, 1, attention.sizes.head_dim, device=device)
    try:
        given = attention.prepare(where, where, None, torch.float32)
        attention.embed_both(one, one[:, :heads_of_keys], given)
    except RuntimeError as error:
        raise ValueError(
            f"{type(attention).__name__} is of each head, and there are {heads_of_keys} of keys "
            f"for {heads} of queries: set num_key_value_heads={heads}"
        ) from error


def can_only_add(model: Any) -> None:
    """Say of a model what transformers asks: it has neither flash nor flex attention, and no plan
    for tensor parallelism, as what is added to scores is of all heads."""
    model._supports_flash_attn = model._supports_flex_attn = False
    model.config.base_model_tp_plan = None
    model._tp_plan = {}
