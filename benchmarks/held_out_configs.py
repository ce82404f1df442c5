"""Models of transformers with tiny configs and inputs that fit them.

Sizes are given by the names of a config's fields, in its parts too (`SMALL`); what a type needs beside that is in
`FITS`, where `None` leaves a field as it is.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

BATCH, LENGTH, PATCHES = 2, 16, 16

# The size of each field, wherever a config has one of that name.
SMALL: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "hidden_dim": 32, "embedding_size": 32,
    "model_dim": 32, "emb_dim": 32, "word_embed_proj_dim": 32, "projection_dim": 32, "encoder_hidden_size": 32,
    "num_hidden_layers": 1, "num_layers": 1, "n_layer": 1, "n_layers": 1, "encoder_layers": 1, "decoder_layers": 1,
    "num_encoder_layers": 1, "num_decoder_layers": 1, "num_blocks": 2, "depth": 1, "layerdrop": 0.0,
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False,
    "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attention_head_size": 8, "d_kv": 8,
    "intermediate_size": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "ffn_dim": 64, "d_ff": 64, "n_inner": 64,
    "ffn_hidden_size": 64, "mlp_dim": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16,
    "vocab_size": 120, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_source_positions": 32,
    "max_target_positions": 64, "type_vocab_size": 2,
    "image_size": 32, "patch_size": 8, "num_channels": 3, "num_mel_bins": 16, "conv_dim": [32, 32],
    "conv_kernel": [8, 4], "conv_stride": [4, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "state_size": 8, "mamba_d_state": 8, "num_queries": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 3, "attention_window": 8,
}  # fmt: skip

_IMAGES = {"image_size": 64}
_STAGES = {"embed_dims": [16, 32], "depths": [1, 1], "num_heads": [1, 2]}
_FORECAST = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "feature_size": None,
}  # fmt: skip
_SOUND = {"position_embeddings_type": "rotary", "hidden_size": 32}
_PYRAMID = {
    "num_attention_heads": [1, 2, 2, 4], "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
    "sr_ratios": [8, 4, 2, 1],
}  # fmt: skip
_BACKBONE = {"backbone_config": "resnet", "d_model": 32, "num_queries": 5, "num_labels": 3}

# What a type needs beside that, where sizes hang together in a way of its own.
FITS: dict[str, dict[str, Any]] = {
    "speech_to_text": {"input_feat_per_channel": 16, "max_source_positions": 64, "conv_channels": 32},
    "wav2vec2-conformer": {"hidden_size": 32, "num_attention_heads": 4, "conv_depthwise_kernel_size": 7,
        "vocab_size": 120},
    "wav2vec2-bert": {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 7, "vocab_size": 120},
    "data2vec-audio": {"mask_time_prob": 0.0},  # no SpecAugment, as in the others: it masks by NumPy's numbers
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 16, "patch_size": 8},
    "prophetnet": {"num_hidden_layers": None, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "gptj": {"rotary_dim": 4, "n_embd": 32, "n_head": 4}, "codegen": {"rotary_dim": 4, "n_embd": 32, "n_head": 4},
    "falcon": {"head_dim": None, "num_kv_heads": 4},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "head_dim": 8, "num_experts_per_tok": 2},
    "qwen3_next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "mamba_n_heads": 8,
        "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2},
    "jamba": {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8, "use_mamba_kernels": False}, "mamba": {"conv_kernel": 4, "time_step_rank": 4},
    "falcon_mamba": {"conv_kernel": 4, "time_step_rank": 4},
    "mamba2": {"conv_kernel": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "bamba": {"num_hidden_layers": 2, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
        "attn_layer_indices": [1]},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8}, "ernie4_5_moe": {"moe_k": 2, "moe_num_experts": 4},
    "hunyuan_v1_dense": {"head_dim": 8}, "hunyuan_v1_moe": {"head_dim": 8}, "ministral": {"head_dim": 8},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "xlstm": {"v_head_dim": None, "qk_head_dim": None}, 
    "rwkv": {"num_hidden_layers": 2}, "gemma3n_text": {"num_hidden_layers": 5},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "mistral4": {"num_key_value_heads": 4, "head_dim": 16},
    "esm": {"mask_token_id": 4, "pad_token_id": 1, "vocab_size": 120},
    "funnel": {"num_hidden_layers": None, "num_blocks": None, "block_sizes": [1, 1]},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4}, "xlnet": {"max_position_embeddings": None},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "reformer": {"is_decoder": True, "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [8, 24], "attn_layers":
        ["local"]}, "deit": {"image_size": 32},
    "hiera": {"image_size": [64, 64], "patch_size": [7, 7], "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2],
        "num_query_pool": 1, "masked_unit_size": [4, 4]}, "yolos": {"image_size": [32, 32]},
    "swin": {"num_heads": [1, 2], "depths": [1, 1], "embed_dim": 16, "window_size": 4, "patch_size": 4},
    "swinv2": {"num_heads": [1, 2], "depths": [1, 1], "embed_dim": 16, "window_size": 4, "patch_size": 4},
    "convnext": {**_IMAGES, "patch_size": 4, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {**_IMAGES, "patch_size": 4, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "resnet": {**_IMAGES, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "regnet": {**_IMAGES, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4},
    "bit": {**_IMAGES, "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 4},
    "focalnet": {**_IMAGES, "embed_dim": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "focal_levels": [2, 2],
        "focal_windows": [3, 3]},
    "poolformer": {**_IMAGES, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "swiftformer": {**_IMAGES, "embed_dims": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "efficientnet": {"hidden_dim": 320, **_IMAGES, "width_coefficient": 0.25, "depth_coefficient": 0.3},
    "mobilevitv2": {"image_size": 64, "patch_size": 2},
    "cvt": {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2], "depth": [1, 1, 1]},
    "levit": {"num_attention_heads": [2, 2, 2], "hidden_sizes": [16, 32, 32], "depths": [1, 1, 1], "image_size": 64,
        "key_dim": [8, 8, 8], "patch_size": 16, "down_ops": None}, "pvt": {**_PYRAMID, **_IMAGES, "patch_size": 4},
    "pvt_v2": {**_PYRAMID, **_IMAGES}, "segformer": {**_PYRAMID, **_IMAGES, "decoder_hidden_size": 16},
    "glpn": {**_PYRAMID, **_IMAGES, "decoder_hidden_size": 16}, "detr": _BACKBONE, "conditional_detr": _BACKBONE,
    "table-transformer": _BACKBONE, "dab-detr": _BACKBONE, "videomae": {"num_frames": 4},
    "timesformer": {"num_frames": 4}, "vivit": {"num_frames": 4}, "time_series_transformer": _FORECAST,
    "informer": _FORECAST, "autoformer": _FORECAST,
    "patchtst": {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2},
    "patchtsmixer": {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2},
    "decision_transformer": {"state_dim": 5, "act_dim": 3, "max_ep_len": 32}, "univnet": {"model_in_channels": 16},
    "dac": {"encoder_hidden_size": 16, "hidden_size": None, "upsampling_ratios": [2, 2], "downsampling_ratios": [2,
        2], "decoder_hidden_size": 32},
    "encodec": {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 16},
    "llava": {"image_token_id": 5, "image_token_index": 5}, "paligemma": {"image_token_id": 5},
}  # fmt: skip

# The types that are tried unless others are named: the language, vision, speech and time-series models people use most.
TRIED = [
    "whisper", "speech_to_text", "wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio",
    "sew", "sew-d", "wav2vec2-conformer", "wav2vec2-bert", "moonshine", "audio-spectrogram-transformer", "bart",
    "mbart", "pegasus", "pegasus_x", "plbart", "m2m_100", "marian", "blenderbot", "blenderbot-small", "led",
    "bigbird_pegasus", "prophetnet", "fsmt", "mvp", "nllb-moe", "switch_transformers", "t5", "mt5", "umt5",
    "longt5", "opt", "xglm", "gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "codegen", "bloom", "falcon",
    "mpt", "ctrl", "openai-gpt", "biogpt", "persimmon", "phi", "phi3", "phimoe", "stablelm", "starcoder2", "llama",
    "mistral", "mixtral", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "qwen3_next", "cohere", "cohere2", "olmo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe",
    "granitemoehybrid", "granitemoeshared", "glm", "glm4", "glm4_moe", "deepseek_v2", "deepseek_v3", "dbrx",
    "jetmoe", "jamba", "mamba", "mamba2", "falcon_mamba", "falcon_h1", "bamba", "zamba", "zamba2", "nemotron",
    "helium", "ernie4_5", "ernie4_5_moe", "exaone4", "smollm3", "arcee", "apertus", "seed_oss", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "gpt_oss", "minimax", "dots1", "lfm2", "lfm2_moe", "doge", "diffllama", "bitnet",
    "recurrent_gemma", "rwkv", "xlstm", "llama4_text", "nanochat", "vaultgemma", "flex_olmo", "longcat_flash",
    "ministral", "mistral4", "bert", "albert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "deberta",
    "deberta-v2", "electra", "distilbert", "ernie", "esm", "fnet", "funnel", "ibert", "layoutlm", "lilt",
    "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "nystromformer", "rembert",
    "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert", "xlm", "xlnet", "xmod", "yoso", "big_bird",
    "canine", "convbert", "bert-generation", "nomic_bert", "flaubert", "data2vec-text", "splinter", "reformer",
    "vit", "deit", "beit", "swin", "swinv2", "convnext", "convnextv2", "resnet", "regnet", "efficientnet",
    "mobilenet_v1", "mobilenet_v2", "mobilevit", "mobilevitv2", "bit", "cvt", "dinov2", "dinov2_with_registers",
    "dinov3_vit", "focalnet", "hiera", "ijepa", "imagegpt", "levit", "poolformer", "pvt", "pvt_v2", "segformer",
    "swiftformer", "vit_mae", "vit_msn", "yolos", "detr", "conditional_detr", "deformable_detr", "rt_detr",
    "d_fine", "dab-detr", "table-transformer", "dpt", "glpn", "videomae", "timesformer", "vivit",
    "data2vec-vision", "mask2former", "maskformer", "siglip_vision_model", "clip", "clip_text_model",
    "clip_vision_model", "siglip", "blip", "align", "altclip", "chinese_clip", "git", "vilt", "visual_bert",
    "owlvit", "xclip", "flava", "groupvit", "clipseg", "time_series_transformer", "informer", "autoformer",
    "patchtst", "patchtsmixer", "timesfm", "encodec", "dac", "mimi", "vits", "univnet", "speecht5",
    "fastspeech2_conformer", "perceiver", "decision_transformer", "llava", "paligemma", "qwen2_vl", "idefics3",
    "sam",
]  # fmt: skip

# And every other type that has a head for language, whatever becomes of it.
TRIED += dict.fromkeys(
    kind
    for heads in (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    for kind in heads
    if kind not in TRIED
)

HEADS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "CTC", "IMAGE_CLASSIFICATION",
    "OBJECT_DETECTION", "SEMANTIC_SEGMENTATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
)  # fmt: skip


def tiny_config(kind: str) -> PretrainedConfig:
    plain = AutoConfig.for_model(kind)
    fits = FITS.get(kind, {})
    named = {**_small(plain), **{name: value for name, value in fits.items() if value is not None}}
    if named.get("backbone_config") == "resnet":
        stages = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "out_features": ["stage2"]}
        named["backbone_config"] = AutoConfig.for_model("resnet", **stages)
        named["use_timm_backbone"] = False
    return type(plain)(**{name: value for name, value in named.items() if fits.get(name, 0) is not None})


def _small(config: PretrainedConfig) -> dict[str, Any]:
    """Settings for a config of that class: small where a field has a name that is known, the same in parts of it."""
    named = {name: size for name, size in SMALL.items() if getattr(config, name, None) is not None}
    for name in getattr(config, "attribute_map", {}):
        named.pop(name, None)
    for name, part in vars(config).items():
        if isinstance(part, PretrainedConfig):
            named[name] = _small(part)
        elif name in named and isinstance(part, list) and not isinstance(named[name], list):
            named.pop(name)
    heads = named.get("num_attention_heads")
    if heads and "num_key_value_heads" in named and config.num_key_value_heads == config.num_attention_heads:
        named["num_key_value_heads"] = heads
    return named


def build(kind: str) -> PreTrainedModel:
    """The model with the first head there is, whose loss is a real one; else without."""
    config = tiny_config(kind)
    for head in HEADS:
        name = getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").get(kind)
        name = name[0] if isinstance(name, tuple) else name
        if name is not None and hasattr(transformers, name):
            return getattr(transformers, name)(config)
    name = modeling_auto.MODEL_MAPPING_NAMES[kind]
    return getattr(transformers, name if isinstance(name, str) else name[0])(config)


def example_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """By the names that `forward` takes: tokens, pictures, sound, and labels where tokens have some."""
    names = inspect.signature(model.forward).parameters
    config, vocabulary = model.config, 100
    tokens = torch.randint(6, vocabulary, (BATCH, LENGTH))
    side = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", 32)
    side = side if isinstance(side, int) else side[0] if isinstance(side, (list, tuple)) else 32
    channels = getattr(config, "num_channels", 3) or 3
    if hasattr(config, "image_token_id") and "pixel_values" in names:
        tokens[:, :PATCHES] = config.image_token_id
    makers: dict[str, Any] = {
        "input_ids": lambda: tokens,
        "attention_mask": lambda: torch.ones_like(tokens) if "input_ids" in names else None,
        "decoder_input_ids": lambda: tokens,
        "pixel_values": lambda: torch.rand(BATCH, *_frames(config), channels, side, side),
        "input_values": lambda: torch.rand(BATCH, *_sound(config)),
        "input_features": lambda: torch.rand(BATCH, *_features(config)),
        "labels": lambda: tokens if _predicts_tokens(model) else None,
        "past_values": lambda: torch.rand(BATCH, *_past(config)),
        "past_time_features": lambda: torch.rand(BATCH, 10, 2),
        "past_observed_mask": lambda: torch.ones(BATCH, *_past(config)),
        "future_values": lambda: torch.rand(BATCH, 4),
        "future_time_features": lambda: torch.rand(BATCH, 4, 2),
        "states": lambda: torch.rand(BATCH, 6, 5),
        "actions": lambda: torch.rand(BATCH, 6, 3),
        "rewards": lambda: torch.rand(BATCH, 6, 1),
        "returns_to_go": lambda: torch.rand(BATCH, 6, 1),
        "timesteps": lambda: torch.arange(6).repeat(BATCH, 1),
        "bbox": lambda: torch.zeros(BATCH, LENGTH, 4, dtype=torch.long),
    }
    made = {name: makers[name]() for name in names if name in makers}
    if isinstance(made.get("input_ids"), torch.Tensor) and model.main_input_name not in ("input_ids", "inputs_embeds"):
        made.setdefault(model.main_input_name, None)
    return {name: value for name, value in made.items() if value is not None}


def _frames(config: Any) -> tuple[int, ...]:
    return (config.num_frames,) if isinstance(getattr(config, "num_frames", None), int) else ()


def _sound(config: Any) -> tuple[int, ...]:
    if config.model_type == "audio-spectrogram-transformer":
        return config.max_length, config.num_mel_bins
    if config.model_type == "moonshine":
        return (4000,)
    return (1, 800) if config.model_type in ("encodec", "dac", "mimi") else (800,)


def _features(config: Any) -> tuple[int, int]:
    if config.model_type in ("speech_to_text", "wav2vec2-bert", "univnet"):
        return 64, 16
    return getattr(config, "num_mel_bins", 16), 64


def _past(config: Any) -> tuple[int, ...]:
    if getattr(config, "num_input_channels", None):
        return config.context_length, config.num_input_channels
    return (10,)  # the context and the largest lag


def _predicts_tokens(model: PreTrainedModel) -> bool:
    return any(
        word in type(model).__name__ for word in ("CausalLM", "MaskedLM", "ConditionalGeneration", "LMHead", "ForCTC")
    )
