"""What our models rely on in ESPnet."""

from cape_plugins.relies import Relies

_ASR = "espnet2.asr"
# by modules that have these names in all versions
_BRANCHFORMER = f"{_ASR}.encoder.branchformer_encoder"
_CONFORMER = f"{_ASR}.encoder.conformer_encoder"
_E_BRANCHFORMER = f"{_ASR}.encoder.e_branchformer_encoder"
_ATTENTION = "espnet2.main_funcs.calculate_all_attentions:MultiHeadedAttention"
_DECODER_LAYER = f"{_ASR}.decoder.transformer_decoder:DecoderLayer"
_ENCODER = "xs_pad ilens prev_states"

RELIES = Relies(
    host="espnet",
    tested={"espnet": ("202511", "202611")},
    overrides={
        "espnet2.samplers.abs_sampler:AbsSampler.generate": "seed",
        "espnet2.tasks.abs_task:AbsTask.build_task_iter_factory": "args iter_options mode",
        "espnet2.tasks.abs_task:AbsTask.main_worker": "args",
        f"{_ASR}.encoder.abs_encoder:AbsEncoder.forward": _ENCODER,
        f"{_ASR}.espnet_model:ESPnetASRModel.encode": "speech speech_lengths",
        f"{_ASR}.frontend.abs_frontend:AbsFrontend.forward": "input input_lengths",
        f"{_ASR}.frontend.abs_frontend:AbsFrontend.output_size": "",
        f"{_ASR}.specaug.abs_specaug:AbsSpecAug.forward": "x x_lengths",
        f"{_ATTENTION}.forward": "query key value mask expand_kv",
        f"{_BRANCHFORMER}:BranchformerEncoder.forward": _ENCODER,
        f"{_BRANCHFORMER}:BranchformerEncoderLayer.forward": "x_input mask cache",
        f"{_CONFORMER}:ConformerEncoder.forward": f"{_ENCODER} masks ctc return_all_hs",
        f"{_CONFORMER}:EncoderLayer.forward": "x_input mask cache",
        f"{_DECODER_LAYER}.forward": (
            "tgt tgt_mask memory memory_mask cache pre_memory pre_memory_mask"
        ),
        f"{_E_BRANCHFORMER}:EBranchformerEncoder.forward": (
            f"{_ENCODER} masks ctc max_layer return_all_hs"
        ),
        f"{_E_BRANCHFORMER}:EBranchformerEncoderLayer.forward": "x_input mask cache",
    },
    uses={
        "espnet2.layers.log_mel:LogMel": "fs n_fft n_mels mel_options melmat",
        "espnet2.layers.stft:Stft": "n_fft hop_length center",
        "espnet2.layers.utterance_mvn:UtteranceMVN": "norm_means norm_vars eps",
        "espnet2.tasks.abs_task:AbsTask": "build_dataset build_sequence_iter_factory",
        f"{_ASR}.espnet_model:ESPnetASRModel": (
            "frontend specaug normalize preencoder encoder postencoder autocast_frontend "
            "_extract_feats"
        ),
        f"{_ASR}.frontend.default:DefaultFrontend": "logmel stft",
        _ATTENTION: "forward_qkv linear_out dropout_rate attn",
        f"{_BRANCHFORMER}:BranchformerEncoder": "embed encoders attention_layer_type",
        f"{_CONFORMER}:ConformerEncoder": "embed encoders selfattention_layer_type",
        f"{_CONFORMER}:EncoderLayer": "dropout concat_after",
        f"{_CONFORMER}:PositionalEncoding": "dropout xscale",
        _DECODER_LAYER: "dropout concat_after",
        f"{_E_BRANCHFORMER}:EBranchformerEncoder": "embed encoders attention_layer_type",
    },
)
