"""GGUF files, written by the package gguf, without their weights: holes are where those would be."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_gguf(
    path: Path, arch: str = "llama", *, experts: int = 0, parts: int = 0, window: int = 0, **sizes: int
) -> Path:
    """A model of Q4_0 matrices, with experts or several files where asked."""
    layers, width, heads, shared = sizes.get("layers", 32), sizes.get("width", 4096), 32, 8
    words, inner = sizes.get("words", 32000), sizes.get("inner", 14336)
    out = gguf.GGUFWriter(path, arch, split_max_tensors=parts)
    out.add_block_count(layers)
    out.add_context_length(32768)
    out.add_embedding_length(width)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(shared)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(words)
    if experts:
        out.add_expert_count(experts)
        out.add_expert_used_count(2)
    if window:
        out.add_sliding_window(window)
    out.add_tokenizer_model("llama")
    out.add_token_list([f"<{i}>" for i in range(words)])
    out.add_token_scores([0.0] * words)
    out.add_token_types([1] * words)
    size = width // heads
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (words, width), "output.weight": (words, width)}
    shapes["output_norm.weight"] = (width,)
    for layer in range(layers):
        names = {"attn_norm": (width,), "attn_q": (width, width), "attn_k": (shared * size, width)}
        names |= {"attn_v": (shared * size, width), "attn_output": (width, width), "ffn_norm": (width,)}
        each, kind = ((experts,), "_exps") if experts else ((), "")
        names |= {f"ffn_{one}{kind}": (*each, inner, width) for one in ("up", "gate")}
        names |= {f"ffn_down{kind}": (*each, width, inner)} | ({"ffn_gate_inp": (experts, width)} if experts else {})
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in names.items()}
    total = 0
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.Q4_0
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        held = int(np.prod(shape)) // block * nbytes
        if len(shape) == 1:
            out.add_tensor_info(name, shape, np.dtype(np.float32), held)
        else:
            rows = gguf.quant_shape_to_byte_shape(shape, kind)
            out.add_tensor_info(name, rows, np.dtype(np.uint8), held, raw_dtype=kind)
        total += held + 32
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    out.close()
    for file in path.parent.glob(f"{path.stem}*.gguf"):
        with open(file, "r+b") as opened:
            opened.truncate(opened.seek(0, 2) + total)
    return path
