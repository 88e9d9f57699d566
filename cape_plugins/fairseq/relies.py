"""What our models rely on in fairseq."""

from cape_plugins.relies import Relies

_LAYERS = "fairseq.modules.transformer_layer"
_MODELS = "fairseq.models.transformer"
_ATTENTION = "fairseq.modules:MultiheadAttention"
_LAYER = "self_attn embed_dim quant_noise quant_noise_block_size"

RELIES = Relies(
    host="fairseq",
    tested={"fairseq-fixed": ("0.12.3.1",), "fairseq": ("0.12.2",)},
    overrides={
        "fairseq.models:BaseFairseqModel.load_state_dict": "state_dict strict model_cfg args",
        "fairseq.models:FairseqEncoder.forward_torchscript": "net_input",
        "fairseq.models.transformer_lm:TransformerLanguageModel.build_model": "args task",
        f"{_MODELS}:TransformerModelBase.add_args": "parser",
        f"{_MODELS}:TransformerModelBase.build_decoder": "cfg tgt_dict embed_tokens",
        f"{_MODELS}:TransformerModelBase.build_encoder": "cfg src_dict embed_tokens",
        f"{_MODELS}:TransformerModelBase.build_model": "cfg task",
        f"{_MODELS}:TransformerDecoderBase.buffered_future_mask": "tensor",
        f"{_MODELS}:TransformerDecoderBase.build_decoder_layer": "cfg no_encoder_attn",
        f"{_MODELS}:TransformerDecoderBase.extract_features": (
            "prev_output_tokens encoder_out incremental_state full_context_alignment "
            "alignment_layer alignment_heads"
        ),
        f"{_MODELS}:TransformerEncoderBase.build_encoder_layer": "cfg",
        f"{_MODELS}:TransformerEncoderBase.forward": (
            "src_tokens src_lengths return_all_hiddens token_embeddings"
        ),
        f"{_MODELS}:TransformerEncoderBase.reorder_encoder_out": "encoder_out new_order",
        f"{_ATTENTION}.forward": (
            "query key value key_padding_mask incremental_state need_weights static_kv attn_mask "
            "before_softmax need_head_weights"
        ),
        f"{_LAYERS}:TransformerDecoderLayerBase.forward": "*",
        f"{_LAYERS}:TransformerDecoderLayerBase.residual_connection": "x residual",
        f"{_LAYERS}:TransformerEncoderLayerBase.forward": "*",
        f"{_LAYERS}:TransformerEncoderLayerBase.residual_connection": "x residual",
    },
    uses={
        "fairseq.checkpoint_utils:load_checkpoint_to_cpu": "path",
        "fairseq.dataclass.configs:CheckpointConfig": (
            "restore_file save_dir continue_once finetune_from_model"
        ),
        "fairseq.distributed:fsdp_wrap": "min_num_params",
        "fairseq.modules.checkpoint_activations:checkpoint_wrapper": "offload_to_cpu",
        "fairseq.modules.fairseq_dropout:FairseqDropout": "p apply_during_inference",
        "fairseq.optim.adam:FairseqAdam": "optimizer_config",
        _ATTENTION: (
            "q_proj k_proj v_proj out_proj dropout_module num_heads head_dim self_attention "
            "use_xformers _get_input_buffer _set_input_buffer _append_prev_key_padding_mask"
        ),
        f"{_MODELS}:TransformerConfig": "from_namespace no_token_positional_embeddings",
        f"{_MODELS}:TransformerDecoderBase": "embed_positions cfg dictionary embed_tokens",
        f"{_MODELS}:TransformerDecoderBase.extract_features_scriptable": (
            "embed_positions buffered_future_mask layers self_attn_padding_mask"
        ),
        f"{_MODELS}:TransformerEncoderBase.forward_scriptable": "layers encoder_padding_mask",
        f"{_MODELS}:TransformerEncoderBase.forward_embedding": "embed_positions",
        f"{_MODELS}:TransformerEncoderBase": "embed_positions dictionary embed_tokens padding_idx",
        f"{_LAYERS}:TransformerDecoderLayerBase": f"{_LAYER} encoder_attn",
        f"{_LAYERS}:TransformerEncoderLayerBase": _LAYER,
    },
)
