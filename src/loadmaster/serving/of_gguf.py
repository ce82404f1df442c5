"""GGUF files as tables of sizes: which part of which layer a tensor is, and what a layer's cache keeps of a token.

In: the header that `importers.gguf` read. Out: `Language`. Keys and defaults are those of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from loadmaster.errors import ImportFailed, UnreadableFile
from loadmaster.importers.gguf import Gguf
from loadmaster.serving.language import MOST_LAYERS, Language, LayerParts

# Layers that see all tokens: every so many-th, the last of each run; the first with "dense first". Where the file has
# no attention.sliding_window_pattern llama.cpp takes these (src/models/*.cpp, load_swa_pattern).
_PATTERNS = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "llama4": 4, "exaone4": 4, "olmo2": 4,
    "plamo3": 8, "smallthinker": -4,
}  # fmt: skip
_WINDOWS = {"gemma2": 4096, "llama4": 8192, "exaone4": 4096, "smallthinker": 4096}
_NO_WINDOW = ("phi3", "mistral", "llama", "qwen2", "qwen3")  # a window in the file that llama.cpp does not keep


class _Metadata:
    """Keys of an architecture, and what is wrong with them in words."""

    def __init__(self, header: Gguf) -> None:
        self.header = header
        arch = header.metadata.get("general.architecture")
        if not isinstance(arch, str):
            raise UnreadableFile("the file names no architecture", str(header.path), "convert the model again")
        self.arch = arch

    def number(self, key: str, default: int | None = None) -> int:
        value = self.header.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**40:
            what = f"the file says no '{self.arch}.{key}'" if value is None else f"'{self.arch}.{key}' is {value}"
            raise UnreadableFile(what, str(self.header.path), "is it a language model? convert it again")
        return value

    def each(self, key: str, count: int, default: int | None = None) -> list[int]:
        """One number for each layer, or one for all."""
        value = self.header.metadata.get(f"{self.arch}.{key}")
        if isinstance(value, list):
            if len(value) < count:
                what = f"'{self.arch}.{key}' has {len(value)} numbers for {count} layers"
                raise UnreadableFile(what, str(self.header.path), "convert the model again")
            return [int(one) for one in value[:count]]
        return [self.number(key, default)] * count


def of_gguf(header: Gguf, path: str) -> Language:
    """The model of that file."""
    meta = _Metadata(header)
    count = meta.number("block_count")
    if not 1 <= count <= MOST_LAYERS:
        raise UnreadableFile(f"the file claims {count} layers", str(header.path), "convert the model again")
    parts, kinds = LayerParts([{} for _ in range(count)]), dict[str, int]()
    names: list[set[str]] = [set() for _ in range(count)]
    for tensor in header.tensors:
        layer, part = _gguf_part(tensor.name, count, header.path)
        kinds[tensor.type] = kinds.get(tensor.type, 0) + tensor.nbytes
        parts.add(layer, part, tensor.nbytes, tensor.values if len(tensor.shape) > 1 else 0)
        if layer is not None:
            names[layer].add(tensor.name.split(".")[2])
    by_name = {tensor.name: tensor for tensor in header.tensors}
    table = by_name.get("token_embd.weight")
    if table is None:
        what = "the file has no table of words ('token_embd.weight')"
        raise ImportFailed(what, str(header.path), "give the file of a language model, not of an adapter or projector")
    tied = "output.weight" not in by_name
    width, heads = meta.number("embedding_length"), meta.each("attention.head_count", count, 1)
    experts = meta.number("expert_count", 0)
    inner = max(meta.each("feed_forward_length", count, 0))
    if experts:
        chosen = meta.number("expert_used_count", 0)
        inner = max(inner, chosen * meta.number("expert_feed_forward_length", inner))
    caches, notes = _caches(meta, count, names, width, heads)
    return Language(
        name=header.path.name,
        path=path,
        arch=meta.arch,
        layers=parts.done(caches),
        embedding_bytes=parts.embedding,
        output_bytes=parts.output + (table.nbytes if tied else 0),
        other_bytes=parts.other,
        output_values=table.values if tied else parts.head_values,
        vocabulary=table.shape[-1],
        width=width,
        heads=max(heads),
        inner=inner,
        experts=experts,
        chosen=meta.number("expert_used_count", 0),
        tied=tied,
        longest=meta.number("context_length", 0),
        types=dict(sorted(kinds.items(), key=lambda one: -one[1])),
        notes=notes,
    )


def _gguf_part(name: str, layers: int, path: Path) -> tuple[int | None, str]:
    """(layer, part) of a tensor by its name (gguf-py, gguf/constants.py)."""
    found = re.match(r"blk\.(\d{1,5})\.(.*)", name)
    if found is None:
        if name == "token_embd.weight":
            return None, "embedding"
        if name.startswith("output"):
            return None, "head" if name == "output.weight" else "output"
        return None, "other"
    if int(found[1]) >= layers:
        raise UnreadableFile(f"'{name}' is beyond the model's {layers} layers", str(path), "convert the model again")
    if re.match(r"ffn_(up|down|gate|gate_up)_(ch)?exps", found[2]):
        return int(found[1]), "expert"
    return int(found[1]), "ffn" if re.match(r"ffn_(up|down|gate|gate_up)(_shexp)?\.", found[2]) else "attention"


def _caches(
    meta: _Metadata, count: int, names: Sequence[set[str]], width: int, heads: Sequence[int]
) -> tuple[list[dict[str, int]], tuple[str, ...]]:
    """What each layer keeps of a token (llama.cpp: llama-hparams.cpp, llama-kv-cache.cpp), and what was assumed."""
    shared = meta.each("attention.head_count_kv", count, max(heads))
    size = meta.number("attention.key_length", width // max(1, max(heads)))
    sizes = size, meta.number("attention.value_length", size)
    latent = "key_length_mla" in "".join(k for k in meta.header.metadata if k.startswith(f"{meta.arch}.attention."))
    windows, notes = _windows(meta, count), []
    state = _state(meta)
    rows = []
    for layer in range(count):
        recurrent = bool(names[layer] & {"ssm_conv1d", "ssm_out", "ssm_in", "time_mix_key", "shortconv"})
        attends = any(name.startswith("attn_") for name in names[layer]) and not (recurrent and state)
        if meta.arch == "falcon-h1":
            attends = True
        key, value = (0, 0) if not attends else (sizes[0] * shared[layer], 0 if latent else sizes[1] * shared[layer])
        rows.append({"key": key, "value": value, "window": windows[layer], "state_bytes": state if recurrent else 0})
    if any(row["state_bytes"] for row in rows):
        notes.append("recurrent layers: their state is priced, their time as that of a product")
    if meta.arch in ("gemma3n", "gemma4"):
        notes.append("layers that share a cache are counted with one each")
    return rows, tuple(notes)


def _windows(meta: _Metadata, count: int) -> list[int]:
    """[layers] tokens that a layer looks back at most; 0: all."""
    window = meta.number("attention.sliding_window", _WINDOWS.get(meta.arch, 0))
    pattern = meta.header.metadata.get(f"{meta.arch}.attention.sliding_window_pattern", _PATTERNS.get(meta.arch))
    if not window or meta.arch in _NO_WINDOW or pattern is None:
        return [0] * count
    if isinstance(pattern, list):
        return [window if layer < len(pattern) and pattern[layer] else 0 for layer in range(count)]
    every = abs(int(pattern))
    if not every:
        return [window] * count
    whole = 0 if int(pattern) < 0 else every - 1
    return [0 if layer % every == whole else window for layer in range(count)]


def _state(meta: _Metadata) -> int:
    """Bytes of a recurrent layer's state, in 32 bits."""
    inner, size = meta.number("ssm.inner_size", 0), meta.number("ssm.state_size", 0)
    kernel, groups = meta.number("ssm.conv_kernel", 1), meta.number("ssm.group_count", 0)
    return 4 * (inner * size + max(0, kernel - 1) * (inner + 2 * groups * size))
