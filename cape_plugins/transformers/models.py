"""Llama and EuroBERT of transformers with a variant's positions; all else is theirs.

EuroBERT is the encoder because it is Llama without the causal mask: every layer sees the whole
text, so that models differ in their positions alone.
"""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import EuroBertConfig, EuroBertModel, LlamaConfig, LlamaModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import AsGiven
from cape_plugins.positions import Positions
from cape_plugins.transformers.attention import (
    NAMES_OF_CACHE,
    CapeAttention,
    CapeEuroBertAttention,
    CapeLlamaAttention,
    NoTable,
    can_only_add,
    check_heads,
    name_of_cache,
)
from cape_plugins.transformers.cached import count, draws, positions_of_keys, remember
from cape_plugins.transformers.loading import Loads
from cape_plugins.transformers.names import TYPES
from cape_plugins.transformers.options import (
    DECODER,
    ENCODER,
    check_names,
    check_rope,
    fields,
    plain_numbers,
    positions,
    settle_rope,
)
from cape_plugins.transformers.relies import RELIES

_CACHE = name_of_cache(LlamaModel.forward)
_CAN_ADD = ("sdpa", "eager")  # attention implementations that take what is added to the scores


class _Options:
    """Mixed into a configuration: the options are checked when it is made."""

    host = DECODER
    host_type = ""

    def __post_init__(self, **others: Any) -> None:
        check_names(self.pos, others, self.host)  # type: ignore[attr-defined]
        plain_numbers(self, self.host)
        theirs = (self.rope_parameters or {}).get("rope_theta", others.get("rope_theta"))  # type: ignore[attr-defined]
        super().__post_init__(**others)  # type: ignore[misc]
        settle_rope(self, theirs)
        with torch.device("meta"):
            positions(self, self.host)


class CapeLlamaConfig(_Options, fields(DECODER), LlamaConfig):  # type: ignore[misc]
    """transformers' LlamaConfig, and the variant ``pos`` with its options."""

    model_type, host, host_type = "cape_llama", DECODER, LlamaConfig.model_type


class CapeEuroBertConfig(_Options, fields(ENCODER), EuroBertConfig):  # type: ignore[misc]
    """transformers' EuroBertConfig, and the variant ``pos`` with its options."""

    model_type, host, host_type = "cape_eurobert", ENCODER, EuroBertConfig.model_type


class _CapeModel(Loads):
    """Mixed into transformers' base models: positions are made once in a forward."""

    attention: type[CapeAttention]
    positions: Positions

    def __init__(self: Any, config: Any) -> None:
        """Built by transformers, then positions are put in; errors are those of ``put_in``."""
        RELIES.check()
        super().__init__(config)  # type: ignore[call-arg]
        self.put_in_positions()

    def put_in_positions(self: Any) -> None:
        """Make a model of transformers one with a variant's positions.

        Raises:
            ValueError: as :func:`cape_plugins.transformers.options.positions`; rope_parameters say
                something else than the options; or the attention implementation cannot take what
                the variant adds to the scores.
        """
        config = self.config
        self.positions = positions(config, config.host)
        check_rope(config, self.positions.options)
        self.rotary_emb = NoTable()
        attentions = self.positions.hand_over()
        self.adds_to_scores = self.positions.reads_keys
        if (first := self.positions.first) is not None:
            check_heads(first, config.num_key_value_heads)
        self._check_implementation()
        if self.adds_to_scores:
            can_only_add(self)
        known: set[PositionalAttention | None] = set()
        for layer, positional in zip(self.layers, attentions, strict=True):
            layer.self_attn.__class__ = self.attention
            if positional in known:  # one for all layers: the first has it in the state dict
                object.__setattr__(layer.self_attn, "positional", positional)
            else:
                layer.self_attn.positional = positional
            known |= {positional} - {None}
            layer.self_attn.adds_to_scores = self.adds_to_scores and positional is not None

    def forward(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **named: Any,
    ) -> Any:
        """As transformers', whose name for the cache is ``cache`` from 5.24 on: both are taken.

        Without ``position_ids``, positions are counted from an ``attention_mask`` (B, N).

        Raises:
            ValueError: both or neither of ``input_ids`` and ``inputs_embeds``; the cache does not
                fit, as :mod:`cape_plugins.transformers.cached`; or gradient checkpointing would
                drop it.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        self._check_implementation()
        content = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        their_cache = _one(past_key_values, named.pop("cache", None))
        cache = self._cache(their_cache, use_cache)
        if self.config.host is DECODER:
            named |= {_CACHE: cache, "use_cache": cache is not None}
        if position_ids is None:
            seen = 0 if cache is None else cache.get_seq_length()
            order = torch.arange(content.shape[1], device=content.device)[None] + seen
            position_ids = count(attention_mask, order)
        where, mask, keys = position_ids.float(), None, None
        drawn = False
        if self.positions.variant.augments is not AsGiven:
            drawn = draws(self.training, their_cache, use_cache)
            remember(cache, drawn)
            split = getattr(self.config, "distributed_config", None)
            if drawn and getattr(split, "tp_size", 1) > 1:
                raise ValueError(
                    f"{type(self).__name__} is split over ranks by tensor parallelism, where each "
                    "would draw other positions for a sample: train it by data parallelism or FSDP"
                )
        batch, tokens = content.shape[:2]
        if isinstance(attention_mask, Tensor) and attention_mask.shape == (batch, tokens):
            where = where.expand(batch, -1).masked_fill(attention_mask == 0, torch.nan)
        if self.adds_to_scores:
            keys = positions_of_keys(cache, where, len(content), attention_mask)
            attention_mask = mask = self._mask(content, attention_mask, cache, position_ids)
        if not self.positions.causal:  # a decoder's are scaled there
            content = content * self.positions.content_scale
        keys = where if keys is None else keys  # the mask stays as it is
        content, given = self.positions(content, where, mask, keys=keys, draws=drawn)
        return super().forward(  # type: ignore[misc]
            inputs_embeds=content,
            attention_mask=attention_mask,
            position_ids=position_ids,
            given=given,
            keys_to=cache,
            **named,
        )

    def _cache(self: Any, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        """The cache that transformers would make; made here, as positions need it first."""
        if self.config.host is ENCODER:
            if cache is not None:
                raise ValueError(f"{type(self).__name__} is an encoder: it takes no cache of keys")
            return None
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            if cache is not None and cache.get_seq_length() > 0:
                raise ValueError(
                    "a cache that holds keys cannot be used with gradient checkpointing in "
                    "training: call gradient_checkpointing_disable(), or give no cache"
                )
            return None
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            return DynamicCache(config=self.config)
        return cache

    def _mask(
        self: Any, content: Tensor, mask: Any, cache: Cache | None, position_ids: Tensor
    ) -> Tensor | None:
        """transformers' mask (B, 1, queries, keys), or None where an encoder sees all."""
        if self.config.host is ENCODER:
            return create_bidirectional_mask(self.config, content, mask)
        return create_causal_mask(
            self.config, content, mask, cache, position_ids, allow_is_causal_skip=False
        )

    def _check_implementation(self: Any) -> None:
        chosen = self.config._attn_implementation
        if self.adds_to_scores and chosen not in _CAN_ADD:
            raise ValueError(
                f"{self.config.pos} adds to the scores of attention, which attn_implementation "
                f"{chosen} does not take: choose {' or '.join(_CAN_ADD)}, or another pos"
            )


def _one(*caches: Cache | None) -> Cache | None:
    """The one that is given, by whichever name."""
    given = [one for one in caches if one is not None]
    if len(given) > 1:
        raise ValueError(f"give the cache by one name, {' or '.join(NAMES_OF_CACHE)}")
    return given[0] if given else None


class _WithBase(Loads):
    """Mixed into transformers' models with a head: their base model becomes ours."""

    base: type[Any]

    def __init__(self: Any, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        base = getattr(self, self.base_model_prefix)
        if not isinstance(base, self.base):
            base.__class__ = self.base
            # what outputs can be asked for: transformers notes it where a class builds a model
            _CAN_RECORD_REGISTRY[base] = base._can_record_outputs
            base.put_in_positions()
        if base.adds_to_scores:
            can_only_add(self)


class CapeLlamaModel(_CapeModel, LlamaModel):
    """transformers' LlamaModel with a variant's positions."""

    config_class, attention = CapeLlamaConfig, CapeLlamaAttention


class CapeEuroBertModel(_CapeModel, EuroBertModel):
    """transformers' EuroBertModel with a variant's positions."""

    config_class, attention = CapeEuroBertConfig, CapeEuroBertAttention


def _headed(theirs: type, base: Any) -> Any:
    """transformers' model with a head, on our base model; its name begins with Cape.

    All have the base model by one name, so that a language model's folder begins any of them.
    """
    about = {"base": base, "config_class": base.config_class, "__module__": __name__}
    about["base_model_prefix"] = base.base_model_prefix
    about["__doc__"] = f"transformers' {theirs.__name__} with a variant's positions."
    return type(f"Cape{theirs.__name__}", (_WithBase, theirs), about)


#: each class with a head, by its name in :data:`TYPES`
for _kind, _base in (("cape_llama", CapeLlamaModel), ("cape_eurobert", CapeEuroBertModel)):
    for _table, _name in TYPES[_kind].items():
        if _table.startswith("MODEL_FOR"):
            globals()[_name] = _headed(getattr(transformers, _name.removeprefix("Cape")), _base)
