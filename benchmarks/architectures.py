"""Which Hugging Face architectures are captured, from tiny configs, and the page that says so.

    python benchmarks/architectures.py --rows rows.jsonl --out docs/coverage.md   # a quarter of an hour
    python benchmarks/architectures.py gpt2 whisper   # some of them, with the whole error

A model counts if it runs eagerly here, forward for inference, forward and backward for training, on the inputs that
`example_inputs` makes from the names in its `forward`. Each is tried in a process of its own with limits on time and
memory. Tiny configs are made by name: `SMALL` has the size for each name of a field, in nested configs too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from loadmaster.errors import ImportFailed
from loadmaster.importers.torch.export import capture
from loadmaster.importers.torch.step import Target

BATCH, LENGTH, SECONDS, MEMORY_BYTES = 2, 16, 120, 12 * 2**30

# The size of each field, wherever a config has one of that name.
SMALL: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "hidden_dim": 32, "embedding_size": 32,
    "model_dim": 32, "emb_dim": 32, "word_embed_proj_dim": 32, "projection_dim": 32, "encoder_hidden_size": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "num_blocks": 2, "depth": 2,
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

# What a type needs beside that, where sizes hang together in a way of its own.
OWN: dict[str, dict[str, Any]] = {}

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

HEADS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "CTC", "IMAGE_CLASSIFICATION",
    "OBJECT_DETECTION", "SEMANTIC_SEGMENTATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
)  # fmt: skip


def tiny_config(kind: str) -> PretrainedConfig:
    plain = AutoConfig.for_model(kind)
    return type(plain)(**_small(plain), **OWN.get(kind, {}))


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
        if name is not None and hasattr(transformers, name):
            return getattr(transformers, name)(config)
    name = modeling_auto.MODEL_MAPPING_NAMES[kind]
    return getattr(transformers, name if isinstance(name, str) else name[0])(config)


def example_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """By the names that `forward` takes: tokens, pictures, sound, and labels where tokens have some."""
    names = inspect.signature(model.forward).parameters
    config, vocabulary = model.config, 100
    tokens = torch.randint(4, vocabulary, (BATCH, LENGTH))
    side = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", 32)
    side = side if isinstance(side, int) else side[0] if isinstance(side, (list, tuple)) else 32
    channels = getattr(config, "num_channels", 3) or 3
    makers: dict[str, Any] = {
        "input_ids": lambda: tokens,
        "attention_mask": lambda: torch.ones_like(tokens) if "input_ids" in names else None,
        "decoder_input_ids": lambda: tokens,
        "pixel_values": lambda: torch.rand(BATCH, channels, side, side),
        "input_values": lambda: torch.rand(BATCH, 800),
        "input_features": lambda: torch.rand(BATCH, getattr(config, "num_mel_bins", 16), 64),
        "labels": lambda: tokens if _predicts_tokens(model) else None,
        "bbox": lambda: torch.zeros(BATCH, LENGTH, 4, dtype=torch.long),
    }
    made = {name: makers[name]() for name in names if name in makers}
    if isinstance(made.get("input_ids"), torch.Tensor) and model.main_input_name not in ("input_ids", "inputs_embeds"):
        made.setdefault(model.main_input_name, None)
    return {name: value for name, value in made.items() if value is not None}


def _predicts_tokens(model: PreTrainedModel) -> bool:
    return any(
        word in type(model).__name__ for word in ("CausalLM", "MaskedLM", "ConditionalGeneration", "LMHead", "ForCTC")
    )


def try_one(kind: str) -> dict[str, Any]:
    """What happened: for each mode "captured", the reason why not, or why it does not run eagerly."""
    torch.manual_seed(0)
    try:
        model = build(kind)
        inputs = example_inputs(model)
    except Exception as error:
        return {"type": kind, "infer": "no", "train": "no", "eager": f"build: {type(error).__name__}: {error}"[:200]}
    found: dict[str, Any] = {"type": kind, "class": type(model).__name__}
    for mode in ("infer", "train"):
        model.train(mode == "train")
        try:
            _run(model, inputs, mode == "train")
        except Exception as error:
            found[mode] = "no"
            found["eager"] = f"{mode}: {type(error).__name__}: {error}"[:200]
            continue
        found[mode], found[f"{mode}_ops"] = _captured(model, inputs, mode == "train")
    return found


def _run(model: PreTrainedModel, inputs: dict[str, Any], training: bool) -> None:
    if not training:
        with torch.no_grad():
            model(**inputs)
        return
    from loadmaster.importers.torch.step import loss_of

    loss_of(model(**inputs), "").backward()
    model.zero_grad()


def _captured(model: PreTrainedModel, inputs: dict[str, Any], training: bool) -> tuple[str, int]:
    try:
        return "captured", capture(model, inputs, training=training, target=Target(masks=True, copies=True)).num_ops
    except ImportFailed as error:
        return f"{error.what} [{error.where}]", 0
    except Exception as error:  # a fault of ours
        return f"fault: {type(error).__name__}: {error}", 0


def _child(kind: str, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.alarm(SECONDS)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    pipe.send(try_one(kind))


def apart(kind: str) -> dict[str, Any]:
    """`try_one` in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(kind, theirs))
    begun = time.monotonic()
    child.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    except EOFError:
        found = {"type": kind, "infer": "no", "train": "no", "eager": "the process ended: too slow or too large"}
    child.join()
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def all_of(kinds: list[str], workers: int) -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(apart, kinds)


def page(rows: list[dict[str, Any]]) -> str:
    """What docs/coverage.md says."""
    eager = {mode: [row for row in rows if row[mode] != "no"] for mode in ("infer", "train")}
    got = {mode: [row for row in eager[mode] if row[mode] == "captured"] for mode in eager}
    lines = [
        "# Hugging Face architectures that are captured",
        "",
        "Made by `python benchmarks/architectures.py --rows rows.jsonl --out docs/coverage.md`",
        f"with torch {torch.__version__.split('+')[0]}",
        f"and transformers {transformers.__version__}, on the CPU.",
        "Each model is built from a tiny config with random weights, run eagerly, and captured on the same inputs.",
        "Masks are those that transformers builds when it is traced, and dropout that drops nothing is a copy;",
        "a plan leaves out the ones that it leaves out in reality, and such copies.",
        "",
        "| | tried | run eagerly | captured | share |",
        "|---|--:|--:|--:|--:|",
    ]
    for mode, label in (("infer", "inference"), ("train", "training")):
        share = 100 * len(got[mode]) / max(len(eager[mode]), 1)
        lines.append(f"| {label} | {len(rows)} | {len(eager[mode])} | {len(got[mode])} | {share:.1f} % |")
    lines += ["", "## Not captured", ""]
    failed = [(row, mode) for row in rows for mode in eager if row[mode] not in ("captured", "no")]
    lines += [f"- {row['type']}, {mode}: {row[mode]}" for row, mode in failed] or ["None of those that run."]
    lines += ["", "## Captured", "", "Ops of the captured graph, views included.", ""]
    lines += ["| type | class | inference | training |", "|---|---|--:|--:|"]
    for row in rows:
        if "captured" in (row["infer"], row["train"]):
            counts = [f"{row[f'{mode}_ops']:,}" if row[mode] == "captured" else "–" for mode in ("infer", "train")]
            lines.append(f"| {row['type']} | {row['class']} | {counts[0]} | {counts[1]} |")
    lines += ["", "## Not run eagerly", ""]
    lines.append("The tiny config or the example inputs do not suit these; they say nothing about capturing.")
    lines.append("")
    for row in rows:
        if "no" in (row["infer"], row["train"]):
            reason = " ".join(str(row.get("eager", "")).split())[:110].replace("|", "/")
            lines.append(f"- {row['type']}: {reason}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="results as JSON lines; what is there is not tried again")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    kept = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    rows = [json.loads(line) for line in kept]
    done = {row["type"] for row in rows}
    kinds = [kind for kind in options.types or TRIED if kind not in done]
    for row in all_of(kinds, options.workers):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if options.out:
        options.out.write_text(page(rows))


if __name__ == "__main__":
    main()
