"""What our models rely on in timm."""

from cape_plugins.relies import Relies

_VIT = "timm.models.vision_transformer"
_NAFLEX = "timm.models.naflexvit"
_ROTARY = "grid_indexing feat_shape"

RELIES = Relies(
    host="timm",
    tested={"timm": ("1.0.31",)},
    overrides={
        "timm.layers:Attention.forward": "x attn_mask is_causal",
        "timm.layers:RotaryEmbeddingCat.get_embed": "shape dtype",
        "timm.layers:RotaryEmbeddingDinoV3.get_embed": "shape dtype",
        "timm.layers:RotaryEmbeddingMixed.get_embed": "shape dtype",
        "timm.models.eva:Eva._pos_embed": "x",
        f"{_NAFLEX}:NaFlexEmbeds.forward": "x patch_coord patch_valid",
        f"{_NAFLEX}:NaFlexEmbeds.reset_parameters": "",
        f"{_NAFLEX}:NaFlexVit._forward_embeds": "x patch_coord patch_valid attn_mask",
        f"{_NAFLEX}:NaFlexVit.load_pretrained": "checkpoint_path prefix",
        f"{_NAFLEX}:NaFlexVit.no_weight_decay": "",
        f"{_VIT}:Block.forward": "x attn_mask is_causal",
        f"{_VIT}:VisionTransformer._pos_embed": "x",
        f"{_VIT}:VisionTransformer.forward_features": "x attn_mask is_causal",
        f"{_VIT}:VisionTransformer.forward_intermediates": (
            "x indices return_prefix_tokens norm stop_early output_fmt intermediates_only "
            "output_dict attn_mask is_causal"
        ),
        f"{_VIT}:VisionTransformer.group_matcher": "coarse",
        f"{_VIT}:VisionTransformer.init_weights": "mode needs_reset",
        f"{_VIT}:VisionTransformer.load_pretrained": "checkpoint_path prefix",
        f"{_VIT}:VisionTransformer.no_weight_decay": "",
    },
    uses={
        "timm.layers:Attention": (
            "qkv q_norm k_norm attn_drop norm proj proj_drop gate num_heads head_dim attn_dim "
            "fused_attn"
        ),
        "timm.layers:RotaryEmbeddingCat": f"{_ROTARY} bands rotate_half ref_feat_shape grid_offset",
        "timm.layers:RotaryEmbeddingDinoV3": f"{_ROTARY} periods rotate_half grid_offset",
        "timm.layers:RotaryEmbeddingMixed": f"{_ROTARY} freqs depth",
        "timm.layers.pos_embed_sincos:make_coords_dinov3": "height width device",
        "timm.models:build_model_with_cfg": "pretrained_filter_fn feature_cfg",
        "timm.models.eva:Eva": "rope patch_embed dynamic_img_size",
        f"{_NAFLEX}:NaFlexEmbeds": (
            "cls_token pos_drop patch_size num_prefix_tokens dynamic_img_pad "
            "pos_embed_ar_preserving pos_embed_grid_size"
        ),
        f"{_NAFLEX}:NaFlexVit": "embeds blocks norm_pre patch_drop embed_dim",
        # what the blocks get, under the name that _forward_embeds gives it
        f"{_NAFLEX}:NaFlexVit.forward_features": "_forward_embeds rope_embeds rope",
        f"{_NAFLEX}:NaFlexVit.forward_intermediates": "_forward_embeds rope_embeds rope",
        f"{_NAFLEX}:NaFlexVitCfg": "pos_embed block_fn attn_layer",
        f"{_VIT}:Block": "norm1 attn ls1 drop_path1 norm2 mlp ls2 drop_path2",
        f"{_VIT}:VisionTransformer": (
            "patch_embed cls_token reg_token pos_drop patch_drop norm_pre blocks norm embed_dim "
            "no_embed_class num_prefix_tokens dynamic_img_size grad_checkpointing pos_embed "
            "block_fn attn_layer"
        ),
    },
)
