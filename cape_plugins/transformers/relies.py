"""What our models rely on in transformers."""

from cape_plugins.relies import Relies

_MODELS = "transformers.models"
_EUROBERT = f"{_MODELS}.eurobert.modeling_eurobert:EuroBert"
_LLAMA = f"{_MODELS}.llama.modeling_llama:Llama"
#: What transformers calls the cache: ``cache`` from 5.24 on, ``past_key_values`` before.
NAMES_OF_CACHE = ("cache", "past_key_values")
_CACHE = "|".join(NAMES_OF_CACHE)
_ATTENTION = "q_proj k_proj v_proj o_proj head_dim scaling attention_dropout layer_idx config"
_MASK = f"config inputs_embeds attention_mask {_CACHE}"

RELIES = Relies(
    host="transformers",
    tested={"transformers": ("5.23.0", "5.24.0")},
    overrides={
        "transformers:PreTrainedModel._init_weights": "module",
        "transformers:PreTrainedModel.from_pretrained": "*",
        f"{_EUROBERT}Attention.forward": (
            f"hidden_states position_embeddings attention_mask {_CACHE} **kwargs"
        ),
        f"{_EUROBERT}Model.forward": "input_ids attention_mask position_ids inputs_embeds **kwargs",
        f"{_LLAMA}Attention.forward": (
            f"hidden_states position_embeddings attention_mask {_CACHE} **kwargs"
        ),
        f"{_LLAMA}Model.forward": (
            f"input_ids attention_mask position_ids {_CACHE} inputs_embeds use_cache **kwargs"
        ),
        "transformers:EuroBertConfig.__post_init__": "*",
        "transformers:LlamaConfig.__post_init__": "*",
    },
    uses={
        "transformers:PreTrainedModel": "post_init base_model_prefix",
        "transformers.cache_utils:Cache": "layers layer_class_to_replicate get_seq_length update",
        "transformers.cache_utils:DynamicCache": "config",
        "transformers.cache_utils:DynamicLayer": "update get_seq_length",
        "transformers.cache_utils:StaticLayer": "update get_seq_length max_cache_len",
        "transformers.masking_utils:create_bidirectional_mask": (
            "config inputs_embeds attention_mask"
        ),
        "transformers.masking_utils:create_causal_mask": (
            f"{_MASK} position_ids allow_is_causal_skip"
        ),
        f"{_EUROBERT}Attention": _ATTENTION,
        f"{_EUROBERT}DecoderLayer.forward": f"self_attn position_embeddings {_CACHE}",
        f"{_EUROBERT}Model": "embed_tokens layers rotary_emb gradient_checkpointing",
        f"{_LLAMA}Attention": _ATTENTION,
        f"{_LLAMA}DecoderLayer.forward": f"self_attn position_embeddings {_CACHE}",
        f"{_LLAMA}Model": "embed_tokens layers rotary_emb gradient_checkpointing",
    },
)
