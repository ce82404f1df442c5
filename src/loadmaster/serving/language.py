"""Language: a language model as a table of sizes, from the headers of its files alone.

`Language` has the bytes of every layer by part, what its cache keeps of a token, and the shape of its experts.
`of_gguf` and `of_folder` fill it. No weight is read, nothing is captured, so that a question about memory is answered
in less time than importing torch takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadmaster.errors import InvalidSetting
from loadmaster.serving.quantizing import PRECISIONS, bytes_of_number

MOST_LAYERS = 4096


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        attention_bytes: of weights outside its feed-forward part.
        ffn_bytes: of the dense feed-forward part, shared experts among them.
        expert_bytes: of all its experts together.
        largest_expert_bytes: of the largest single tensor of experts.
        attention_values, ffn_values, expert_values: numbers in them, two operations a token each.
        key, value: numbers that the cache keeps of a token; 0: no cache.
        window: tokens that are kept at most; 0: all.
        state_bytes: of a recurrent layer, for each sequence.
    """

    attention_bytes: int = 0
    ffn_bytes: int = 0
    expert_bytes: int = 0
    largest_expert_bytes: int = 0
    attention_values: int = 0
    ffn_values: int = 0
    expert_values: int = 0
    key: int = 0
    value: int = 0
    window: int = 0
    state_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.attention_bytes + self.ffn_bytes + self.expert_bytes


@dataclass(frozen=True)
class Language:
    """A model by its sizes.

    Attributes:
        name: of the file or folder.
        path: as it was given.
        arch: as the file calls it.
        layers: in order.
        embedding_bytes: of the table of words.
        output_bytes: of the head and what comes after the last layer; of a tied model a copy of the table.
        other_bytes: of what belongs to none of these.
        output_values: numbers in the head.
        vocabulary, width, heads: words, numbers of a hidden state, attention heads.
        inner: widest of the feed-forward parts, for one token.
        experts, chosen: of a layer, and of them for a token.
        tied: whether the head is the table of words.
        longest: tokens it was trained for; 0: unknown.
        types: bytes by type of weights, largest first.
        notes: what was assumed.
    """

    name: str
    path: str
    arch: str
    layers: tuple[Layer, ...]
    embedding_bytes: int
    output_bytes: int
    other_bytes: int
    output_values: int
    vocabulary: int
    width: int
    heads: int
    inner: int
    experts: int = 0
    chosen: int = 0
    tied: bool = False
    longest: int = 0
    types: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """What llama.cpp reads: the file itself, or what a folder is converted to."""
        return self.path if self.path.endswith(".gguf") else f"{self.name}.gguf"

    @property
    def weight_bytes(self) -> int:
        """Of the file: a tied head is not there twice."""
        inside = sum(layer.weight_bytes for layer in self.layers) + self.embedding_bytes + self.other_bytes
        return inside + self.output_bytes - (self.embedding_bytes if self.tied else 0)


@dataclass
class LayerParts:
    """Sizes of tensors, put together by layer and part."""

    layers: list[dict[str, int]]
    embedding: int = 0
    output: int = 0
    head_values: int = 0
    other: int = 0

    def add(self, layer: int | None, part: str, nbytes: int, values: int) -> None:
        if layer is None:
            if part == "embedding":
                self.embedding += nbytes
            elif part in ("head", "output"):
                self.output += nbytes
                self.head_values += values if part == "head" else 0
            else:
                self.other += nbytes
            return
        row = self.layers[layer]
        row[f"{part}_bytes"] = row.get(f"{part}_bytes", 0) + nbytes
        row[f"{part}_values"] = row.get(f"{part}_values", 0) + values
        if part == "expert":
            row["largest_expert_bytes"] = max(row.get("largest_expert_bytes", 0), nbytes)

    def done(self, tables: Sequence[Mapping[str, int]]) -> tuple[Layer, ...]:
        return tuple(Layer(**{**row, **table}) for row, table in zip(self.layers, tables, strict=True))


def with_weights(model: Language, precision: str) -> Language:
    """The same model with its matrices at that precision, the table of words in 16 bits or more."""
    if precision not in PRECISIONS:
        raise InvalidSetting(f"'{precision}' is no precision here", "--weights", f"use one of {', '.join(PRECISIONS)}")
    size, words = bytes_of_number(precision), 4 if precision == "float32" else 2
    layers = tuple(
        replace(
            layer,
            attention_bytes=round(layer.attention_values * size),
            ffn_bytes=round(layer.ffn_values * size),
            expert_bytes=round(layer.expert_values * size),
        )
        for layer in model.layers
    )
    table = model.vocabulary * model.width * words
    head = table if model.tied else round(model.output_values * size)
    return replace(model, layers=layers, embedding_bytes=table, output_bytes=head)
