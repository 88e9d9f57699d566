"""Llama and EuroBERT of transformers with a variant's positions; all else is theirs.

EuroBERT is the encoder because it is Llama without the causal mask: every layer sees the whole
text, so that models differ in their positions alone.

What a variant adds to the scores needs the positions of cached keys. They are one more layer of
transformers' cache, which so is cropped, reordered and repeated as the keys are.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    EuroBertForSequenceClassification,
    EuroBertForTokenClassification,
    EuroBertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
)
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.eurobert.modeling_eurobert import EuroBertAttention
from transformers.models.llama.modeling_llama import LlamaAttention, eager_attention_forward

from cape_plugins.attention import NOTHING, Given, PositionalAttention
from cape_plugins.augment import AsGiven
from cape_plugins.mark import VariantMark, compare, say
from cape_plugins.module import Positions
from cape_plugins.ranks import generator_of_rank
from cape_plugins.sinusoid import Sinusoids
from cape_plugins.sizes import Part
from cape_plugins.transformers.options import (
    DECODER,
    ENCODER,
    adds_by_content,
    check_names,
    check_rope,
    fields,
    positions,
)

__all__ = [
    "CapeEuroBertConfig",
    "CapeEuroBertForMaskedLM",
    "CapeEuroBertForSequenceClassification",
    "CapeEuroBertForTokenClassification",
    "CapeEuroBertModel",
    "CapeLlamaConfig",
    "CapeLlamaForCausalLM",
    "CapeLlamaForQuestionAnswering",
    "CapeLlamaForSequenceClassification",
    "CapeLlamaForTokenClassification",
    "CapeLlamaModel",
]

_PLAIN = PositionalAttention
_CAN_ADD = ("sdpa", "eager")  # attention implementations that take what is added to the scores


class _Options:
    """Mixed into a configuration: the options are checked when it is made."""

    host = DECODER
    host_type = ""

    def __post_init__(self, **others: Any) -> None:
        check_names(others, self.host)
        super().__post_init__(**others)  # type: ignore[misc]
        with torch.device("meta"):
            positions(self, self.host)


class CapeLlamaConfig(_Options, fields(DECODER), LlamaConfig):  # type: ignore[misc]
    """transformers' LlamaConfig, and the variant ``pos`` with its options."""

    model_type, host, host_type = "cape_llama", DECODER, LlamaConfig.model_type


class CapeEuroBertConfig(_Options, fields(ENCODER), EuroBertConfig):  # type: ignore[misc]
    """transformers' EuroBertConfig, and the variant ``pos`` with its options."""

    model_type, host, host_type = "cape_eurobert", ENCODER, EuroBertConfig.model_type


class _CapeAttention:
    """Mixed into transformers' attention: the variant's, or theirs where nothing is added."""

    positional: PositionalAttention | None  # None: transformers' own
    adds_to_scores: bool

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        given: Given = NOTHING,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As transformers'; keys are cached with their positions embedded."""
        shape = hidden_states.shape[:-1]
        query, key, value = (
            project(hidden_states).view(*shape, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.positional is not None:  # new keys stand where their queries stand
            here = given._replace(keys=given.queries)
            query, key = self.positional.embed_both(query, key, here)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        dropout = self.attention_dropout if self.training else 0.0
        implementation = self.config._attn_implementation
        if self.adds_to_scores:
            out, weights = self.positional.attend(
                query, key, value, given, dropout, need_weights=implementation == "eager"
            )
            out = out.transpose(1, 2)
        else:
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
            named |= dict(dropout=dropout, scaling=self.scaling)
            out, weights = attend(self, query, key, value, attention_mask, **named)
        return self.o_proj(out.reshape(*shape, -1).contiguous()), weights


class CapeLlamaAttention(_CapeAttention, LlamaAttention):
    """Llama's attention with a variant's positions."""


class CapeEuroBertAttention(_CapeAttention, EuroBertAttention):
    """EuroBERT's attention with a variant's positions."""


class _NoTable(nn.Module):
    """In place of transformers' rotary table, which nobody reads here."""

    def forward(self, *_: Any, **__: Any) -> None:
        """Nothing."""


class _Loads:
    """Mixed into all our models: their parts are initialised, and the mark is compared."""

    _keys_to_ignore_on_load_missing = (r"positions\.mark\.",)  # of transformers' own weights

    def _init_weights(self: Any, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[misc]
        if isinstance(module, Part):  # not all have parameters
            getattr(module, "reset_parameters", lambda: None)()
        elif isinstance(module, VariantMark):  # what the checkpoint has not
            for name, value in module.settings.items():
                entry = getattr(module, name)
                if not getattr(entry, "_is_hf_initialized", False):
                    entry.copy_(torch.tensor(value, dtype=entry.dtype))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **named: Any) -> Any:
        """As transformers'.

        Raises:
            ValueError: the weights are of another variant, or of another value of an option that
                changes results in evaluation.
        """
        model, info = super().from_pretrained(  # type: ignore[misc]
            *args, output_loading_info=True, **named
        )
        for module in model.modules():
            if isinstance(module, VariantMark):
                _compare(module, info["unexpected_keys"])
        return (model, info) if output_loading_info else model


def _compare(mark: VariantMark, unexpected: Any) -> None:
    """transformers has put a checkpoint's values where ours were: compare, then take ours again."""
    found = dict(mark.named_buffers())
    found |= {key.rpartition(".")[2]: torch.empty(0) for key in unexpected if ".mark." in key}
    say(compare(found, mark), [mark])
    mark.to(next(mark.buffers()).device)


class _CapeModel(_Loads):
    """Mixed into transformers' base models: positions are made once in a forward."""

    attention: type[_CapeAttention]
    positions: Positions

    def __init__(self: Any, config: Any) -> None:
        """Built by transformers, then positions are put in.

        Raises:
            ValueError: as :func:`cape_plugins.transformers.options.positions`; rope_parameters say
                something else than the options; or the attention implementation cannot take what
                the variant adds to the scores.
        """
        super().__init__(config)  # type: ignore[call-arg]
        self.positions = positions(config, config.host)
        check_rope(config, self.positions.options)
        self.adds_by_content = adds_by_content(self.positions)
        self.rotary_emb = _NoTable()
        attentions = self.positions.hand_over()
        self.adds_to_scores = _adds_to_scores(attentions[0], config.num_key_value_heads)
        self._check_implementation()
        known: set[PositionalAttention | None] = set()
        for layer, positional in zip(self.layers, attentions, strict=True):
            layer.self_attn.__class__ = self.attention
            if positional in known:  # one for all layers: the first has it in the state dict
                object.__setattr__(layer.self_attn, "positional", positional)
            else:
                layer.self_attn.positional = positional
            known |= {positional} - {None}
            layer.self_attn.adds_to_scores = self.adds_to_scores and positional is not None
        # sinusoids are about 1 (Vaswani et al. 2017 scale tokens so too); tables begin as tokens do
        sinusoids = isinstance(self.positions.added, Sinusoids)
        self.content_scale = config.hidden_size**0.5 if sinusoids else 1.0

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
        """As transformers'."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        self._check_implementation()
        content = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = None
        if self.config.host is DECODER:
            cache = self._cache(past_key_values, use_cache)
            named |= dict(past_key_values=cache, use_cache=cache is not None)
        if position_ids is None:
            seen = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(content.shape[1], device=content.device)[None] + seen
        where, mask, keys = position_ids.float(), None, None
        if self.adds_by_content or self.positions.augmentation.needs_whole_sequence(self.training):
            where = _without_padding(where, attention_mask)
        if self.adds_to_scores:
            attention_mask = mask = self._mask(content, attention_mask, cache, position_ids)
            keys = _positions_of_keys(cache, len(self.layers), where, len(content))
        generator = None
        if self.training and self.positions.variant.augments is not AsGiven:
            generator = generator_of_rank(content.device)
        content, given = self.positions(
            content * self.content_scale, where, mask, keys=keys, generator=generator
        )
        return super().forward(  # type: ignore[misc]
            inputs_embeds=content,
            attention_mask=attention_mask,
            position_ids=position_ids,
            given=given,
            **named,
        )

    def _cache(self: Any, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        """The cache that transformers would make; made here, as positions need it first."""
        if self.gradient_checkpointing and self.training:
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


def _adds_to_scores(attention: PositionalAttention | None, heads_of_keys: int) -> bool:
    """Whether a variant changes scores, besides queries and keys: then transformers' attention
    functions are not enough.

    Raises:
        ValueError: it has parameters of each head, and keys have fewer.
    """
    if attention is None:
        return False
    device = next((one.device for one in attention.parameters()), torch.device("cpu"))
    where, heads = torch.zeros(1, 1, 1, device=device), attention.sizes.heads
    given = attention.prepare(where, where, None, torch.float32)
    one = torch.zeros(1, heads, 1, attention.sizes.head_dim, device=device)
    try:
        attention.embed_both(one, one[:, :heads_of_keys], given)
    except RuntimeError as error:
        raise ValueError(
            f"{type(attention).__name__} is of each head, and there are {heads_of_keys} of keys "
            f"for {heads} of queries: set num_key_value_heads={heads}"
        ) from error
    of_scores = ("bias", "bias_and_mask", "scores", "attend", "forward")
    own = [n for n in of_scores if getattr(type(attention), n) is not getattr(_PLAIN, n)]
    return bool(own) or given.bias is not None


def _positions_of_keys(cache: Cache | None, index: int, where: Tensor, batch: int) -> Tensor | None:
    """Positions (B, keys) of all keys so far, or None where they are those of the queries.

    They are layer number ``index`` of the cache, keys of one head and one channel.
    """
    if cache is None:
        return None
    new = where.expand(batch, -1)[:, None, :, None]
    while len(cache.layers) < index:  # a cache that was made without a configuration
        cache.layers.append(cache.layer_class_to_replicate())
    if len(cache.layers) == index:
        cache.layers.append(_layer_of_positions(cache, new))
    stored = cache.layers[index].update(new, new)[0][:, 0, :, 0]
    return None if stored.shape[1] == where.shape[1] else stored


def _layer_of_positions(cache: Cache, like: Tensor) -> Any:
    """A layer for positions; keys that are there already (a learned prefix) have none, NaN."""
    first = cache.layers[0]
    if isinstance(first, StaticLayer):
        return StaticLayer(first.max_cache_len)
    layer = DynamicLayer()
    if seen := first.get_seq_length():
        none = like.new_full((len(like), 1, seen, 1), torch.nan)
        layer.update(none, none)
    return layer


def _without_padding(where: Tensor, mask: Any) -> Tensor:
    """Positions (B, N) with NaN where transformers' mask (B, N) has padding."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] != where.shape[1]:
        return where
    return where.expand(len(mask), -1).masked_fill(mask == 0, torch.nan)


class _WithBase(_Loads):
    """Mixed into transformers' models with a head: their base model is replaced by ours."""

    base: type[Any]

    def __init__(self: Any, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        if not isinstance(getattr(self, self.base_model_prefix), self.base):
            setattr(self, self.base_model_prefix, self.base(config))
            self.post_init()  # again: it ties the head to the base model's embedding


class CapeLlamaModel(_CapeModel, LlamaModel):
    """transformers' LlamaModel with a variant's positions."""

    config_class, attention = CapeLlamaConfig, CapeLlamaAttention


class _Llama(_WithBase):
    config_class, base = CapeLlamaConfig, CapeLlamaModel


class CapeLlamaForCausalLM(_Llama, LlamaForCausalLM):
    """For causal language modelling."""


class CapeLlamaForSequenceClassification(_Llama, LlamaForSequenceClassification):
    """For a class of each text."""


class CapeLlamaForQuestionAnswering(_Llama, LlamaForQuestionAnswering):
    """For the span of a text that answers."""


class CapeLlamaForTokenClassification(_Llama, LlamaForTokenClassification):
    """For a class of each token."""


class CapeEuroBertModel(_CapeModel, EuroBertModel):
    """transformers' EuroBertModel with a variant's positions."""

    config_class, attention = CapeEuroBertConfig, CapeEuroBertAttention


class _EuroBert(_WithBase):
    config_class, base = CapeEuroBertConfig, CapeEuroBertModel


class CapeEuroBertForMaskedLM(_EuroBert, EuroBertForMaskedLM):
    """For masked language modelling."""


class CapeEuroBertForSequenceClassification(_EuroBert, EuroBertForSequenceClassification):
    """For a class of each text."""


class CapeEuroBertForTokenClassification(_EuroBert, EuroBertForTokenClassification):
    """For a class of each token."""
