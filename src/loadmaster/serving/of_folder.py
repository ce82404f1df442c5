"""Hugging Face folders as tables of sizes: tensors from the headers of safetensors, shapes from config.json.

Where there is a config.json alone, the tensors are those that the usual decoder has by its sizes; other kinds of models
are built by transformers, without memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from loadmaster.errors import ImportFailed, UnreadableFile
from loadmaster.importers.safetensors import StoredTensor, read_tensors
from loadmaster.serving.language import MOST_LAYERS, Language, LayerParts

# Decoders of projections to queries, keys and values, and a feed-forward part of three matrices.
_USUAL = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "olmo2",
          "granite", "cohere", "cohere2")  # fmt: skip


def of_folder(path: Path) -> Language:
    """A Hugging Face folder: sizes from the headers of its safetensors, shapes from its config.json."""
    config = _config(path)
    tensors = read_tensors(path) if any(path.glob("*.safetensors")) else tuple(_described(config, path))
    count = _said(config, path, "num_hidden_layers", "n_layer")
    if not 1 <= count <= MOST_LAYERS:
        raise UnreadableFile(f"the model claims {count} layers", str(path), "is it the model's config.json?")
    parts, kinds = LayerParts([{} for _ in range(count)]), dict[str, int]()
    for tensor in tensors:
        layer, part = _folder_part(tensor.name, count)
        kinds[tensor.type] = kinds.get(tensor.type, 0) + tensor.nbytes
        parts.add(layer, part, tensor.nbytes, tensor.values if len(tensor.shape) > 1 else 0)
    tied = parts.head_values == 0
    width, heads = _said(config, path, "hidden_size", "n_embd"), _said(config, path, "num_attention_heads", "n_head")
    experts, chosen = _experts(config)
    narrow = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * width)
    inner = max(int(config.get("intermediate_size") or 4 * width), chosen * narrow)
    if parts.embedding == 0:
        raise ImportFailed("the folder has no table of words", str(path), "give the folder of a language model")
    vocabulary = _said(config, path, "vocab_size")
    return Language(
        name=path.resolve().name,
        path=str(path),
        arch=str(config.get("model_type", "unknown")),
        layers=parts.done([_folder_cache(config, path, width, heads, layer) for layer in range(count)]),
        embedding_bytes=parts.embedding,
        output_bytes=parts.output + (parts.embedding if tied else 0),
        other_bytes=parts.other,
        output_values=vocabulary * width,
        vocabulary=vocabulary,
        width=width,
        heads=heads,
        inner=inner,
        experts=experts,
        chosen=chosen,
        tied=tied,
        longest=int(config.get("max_position_embeddings") or 0),
        types=dict(sorted(kinds.items(), key=lambda one: -one[1])),
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        data = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        what = f"'{path / 'config.json'}' cannot be read: {error}"
        raise UnreadableFile(what, str(path), "give a folder with the model's config.json") from None
    inside = data.get("text_config") if isinstance(data, dict) else None
    found = {**data, **inside} if isinstance(inside, dict) else data
    if not isinstance(found, dict):
        raise UnreadableFile(f"'{path / 'config.json'}' is no object", str(path), "is it the model's config.json?")
    return found


def _said(config: Mapping[str, Any], path: Path, *keys: str) -> int:
    for key in keys:
        if isinstance(value := config.get(key), int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    raise UnreadableFile(f"config.json says no {keys[0]}", str(path), "is it the config.json of a language model?")


def _experts(config: Mapping[str, Any]) -> tuple[int, int]:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((int(config[name]) for name in names if config.get(name)), 0)
    return experts, int(config.get("num_experts_per_tok") or 0) if experts else 0


def _folder_part(name: str, layers: int) -> tuple[int | None, str]:
    found = re.search(r"(?:layers|h|blocks)\.(\d{1,5})\.(.*)", name)
    if found is None or int(found[1]) >= layers:
        if re.search(r"(embed_tokens|wte|word_embeddings)\.", name):
            return None, "embedding"
        return None, "head" if re.search(r"(lm_head|embed_out)\.", name) else "output" if "norm" in name else "other"
    inside = found[2]
    if re.search(r"experts\.", inside) and "shared_expert" not in inside:
        return int(found[1]), "expert"
    return int(found[1]), "ffn" if re.match(r"(mlp|feed_forward|block_sparse_moe)\.(?!gate\.)", inside) else "attention"


def _folder_cache(config: Mapping[str, Any], path: Path, width: int, heads: int, layer: int) -> dict[str, int]:
    if latent := int(config.get("kv_lora_rank") or 0):
        return {"key": latent + int(config.get("qk_rope_head_dim") or 0), "value": 0}
    shared = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or width // heads) * shared
    kinds = config.get("layer_types")
    sliding = isinstance(kinds, list) and layer < len(kinds) and kinds[layer] == "sliding_attention"
    linear = isinstance(kinds, list) and layer < len(kinds) and kinds[layer] == "linear_attention"
    window = int(config.get("sliding_window") or 0) if sliding else 0
    return {"key": 0 if linear else size, "value": 0 if linear else size, "window": window}


def _described(config: Mapping[str, Any], path: Path) -> Iterator[StoredTensor]:
    """What the config.json alone says of tensors, in 16 bits."""
    if config.get("model_type") not in _USUAL:
        from loadmaster.serving.phases import build

        for name, parameter in build(path).named_parameters():
            yield _stored(name, tuple(parameter.shape))
        return
    width, vocabulary = _said(config, path, "hidden_size"), _said(config, path, "vocab_size")
    heads, inner = _said(config, path, "num_attention_heads"), _said(config, path, "intermediate_size")
    size = int(config.get("head_dim") or width // heads)
    shared, experts = int(config.get("num_key_value_heads") or heads), _experts(config)[0]
    yield _stored("embed_tokens.weight", (vocabulary, width))
    yield _stored("norm.weight", (width,))
    if not config.get("tie_word_embeddings", str(config["model_type"]).startswith(("gemma", "cohere"))):
        yield _stored("lm_head.weight", (vocabulary, width))
    for layer in range(min(_said(config, path, "num_hidden_layers"), MOST_LAYERS)):
        yield _stored(f"layers.{layer}.self_attn.qkv", ((heads + 2 * shared) * size, width))
        yield _stored(f"layers.{layer}.self_attn.o_proj", (width, heads * size))
        if experts:
            narrow = int(config.get("moe_intermediate_size") or inner)
            yield _stored(f"layers.{layer}.mlp.gate.weight", (experts, width))
            for name in ("up", "gate", "down"):
                yield _stored(f"layers.{layer}.mlp.experts.{name}", (experts, narrow, width))
        else:
            yield _stored(f"layers.{layer}.mlp.weight", (3 * inner, width))


def _stored(name: str, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(name, shape, "BF16", 2 * prod(shape))
