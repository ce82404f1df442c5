"""Attention language models: Transformer-XL by hand, the others from their published configurations.

Each function returns a module and example inputs at the sizes of its publication, built without memory; the section or
table that the sizes are from stands in its docstring.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.errors import MissingExtra
from loadmaster.zoo.pieces import Model, token_loss, tokens


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions (Dai et al. 2019, arXiv 1901.02860, section 3.3)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.position = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor, mask: Tensor, u: Tensor, v: Tensor) -> Tensor:
        keys, values = self.key_value(torch.cat([memory, x], dim=1)).chunk(2, dim=-1)
        query, keys, values = self.split(self.query(x)), self.split(keys), self.split(values)
        position = self.split(self.position(positions).unsqueeze(0))
        content = torch.matmul(query + u, keys.transpose(-1, -2))
        distance = relative_shift(torch.matmul(query + v, position.transpose(-1, -2)))
        scores = ((content + distance) * query.shape[-1] ** -0.5).masked_fill(mask, float("-inf"))
        mixed = torch.matmul(torch.softmax(scores, dim=-1), values)
        out: Tensor = self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return out

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2)  # [batch, heads, steps, head width]


def relative_shift(scores: Tensor) -> Tensor:
    """Column j of row i moves to the distance between query i and key j (arXiv 1901.02860, appendix B)."""
    batch, heads, rows, columns = scores.shape
    padded = F.pad(scores, (1, 0)).view(batch, heads, columns + 1, rows)
    return padded[:, :, 1:].reshape(batch, heads, rows, columns)


class XlLayer(nn.Module):
    """Attention with relative positions over the segment and the one before, then a feed-forward net."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads, dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width), nn.Dropout(dropout)
        )
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor, mask: Tensor, u: Tensor, v: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, memory, positions, mask, u, v))
        out: Tensor = self.feed_forward_norm(x + self.feed_forward(x))
        return out


class TransformerXl(nn.Module):
    """Segment-level recurrence: each layer also reads its input of the segment before (arXiv 1901.02860, section 3.2).

    The memory for the next segment is the layers' inputs as they are, so it adds no op.
    """

    def __init__(self, layers: int, width: int, heads: int, inner: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.layers = nn.ModuleList(XlLayer(width, heads, inner, dropout) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor, memory: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.dropout(self.embedding(words) * self.embedding.embedding_dim**0.5)
        span = words.shape[1] + memory.shape[2]
        positions = self.dropout(sinusoids(span, x))
        hidden_from = x.new_ones(words.shape[1], span, dtype=torch.bool).triu(1 + memory.shape[2])
        for layer, remembered in zip(self.layers, memory.unbind(0), strict=True):
            x = layer(x, remembered, positions, hidden_from, self.content_bias, self.position_bias)
        logits: Tensor = self.head(x)
        return logits if targets is None else token_loss(logits, targets)


def sinusoids(span: int, like: Tensor) -> Tensor:
    """Distances span - 1 down to 0, encoded as in Vaswani et al. 2017 (arXiv 1706.03762, section 3.5)."""
    width = like.shape[-1]
    distance = torch.arange(span - 1, -1, -1, device=like.device, dtype=like.dtype)
    frequency = 10000 ** (-torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width)
    angle = distance.unsqueeze(1) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def transformer_xl(
    training: bool, layers: int, width: int, heads: int, inner: int, vocabulary: int, dropout: float, batch: int,
    segment: int, memory: int,
) -> Model:  # fmt: skip
    words = tokens(batch, segment, vocabulary)
    remembered = torch.randn(layers, batch, memory, width)
    module = TransformerXl(layers, width, heads, inner, vocabulary, dropout).train(training)
    return module, (words, remembered, words.clone()) if training else (words, remembered)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Modules built inside have this dtype from the start: a fake module cannot be cast afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def pretrained(architecture: str, configuration: str, attention: str, **settings: object) -> nn.Module:
    """A model of the transformers package from its configuration: no weights are read."""
    try:
        transformers: Any = import_module("transformers")
    except ModuleNotFoundError:
        raise MissingExtra.of("transformers", "zoo", "this model of the zoo") from None
    config = getattr(transformers, configuration)(attn_implementation=attention, **settings)
    model: nn.Module = getattr(transformers, architecture)(config)
    return model


class Causal(nn.Module):
    """A decoder that predicts the next token, reduced to one tensor out: the loss, or the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, targets: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(input_ids=words, use_cache=False).logits
        return logits if targets is None else token_loss(logits.float(), targets)


class Masked(nn.Module):
    """BERT with both of its pretraining tasks (Devlin et al. 2018, arXiv 1810.04805, section 3.1)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, words: Tensor, segments: Tensor, targets: Tensor | None = None, follows: Tensor | None = None
    ) -> Tensor:
        out = self.model(input_ids=words, token_type_ids=segments)
        logits: Tensor = out.prediction_logits
        if targets is None or follows is None:
            return logits
        return token_loss(logits, targets) + F.cross_entropy(out.seq_relationship_logits, follows)


class TextToText(nn.Module):
    """An encoder and a decoder, reduced to one tensor out: the loss, or the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, words: Tensor, targets: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(input_ids=source, decoder_input_ids=words, use_cache=False).logits
        return logits if targets is None else token_loss(logits, targets)


def causal(module: nn.Module, training: bool, batch: int, steps: int, vocabulary: int) -> Model:
    words = tokens(batch, steps, vocabulary)
    return Causal(module).train(training), (words, words.clone()) if training else (words,)


def gpt2(training: bool, batch: int, steps: int, layers: int = 12, vocabulary: int = 50257) -> Model:
    """GPT-2 small: 768 wide, 12 heads (Radford et al. 2019, table 2, first row)."""
    model = pretrained("GPT2LMHeadModel", "GPT2Config", "eager", n_layer=layers, vocab_size=vocabulary)
    return causal(model, training, batch, steps, vocabulary)


def bert(training: bool, batch: int, steps: int, layers: int = 12, vocabulary: int = 30522) -> Model:
    """BERT-base: 768 wide, 12 heads (arXiv 1810.04805, section 3). Every position is predicted, masked or not."""
    sizes = {"num_hidden_layers": layers, "vocab_size": vocabulary}
    module = Masked(pretrained("BertForPreTraining", "BertConfig", "eager", **sizes)).train(training)
    words, segments = tokens(batch, steps, vocabulary), tokens(batch, steps, 2)
    follows = torch.randint(0, 2, (batch,))
    return module, (words, segments, words.clone(), follows) if training else (words, segments)


def t5(training: bool, batch: int, steps: int, targets: int, layers: int = 12, vocabulary: int = 32128) -> Model:
    """T5-base: 768 wide, 3,072 inside, 12 heads (Raffel et al. 2019, arXiv 1910.10683, section 3.1.1)."""
    sizes = {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": layers, "vocab_size": vocabulary}
    module = TextToText(pretrained("T5ForConditionalGeneration", "T5Config", "eager", **sizes)).train(training)
    source, words = tokens(batch, steps, vocabulary), tokens(batch, targets, vocabulary)
    return module, (source, words, words.clone()) if training else (source, words)


def llama(
    training: bool, batch: int, steps: int, width: int = 4096, layers: int = 32, vocabulary: int = 128_256
) -> Model:
    """Llama 3 8B: 14,336 inside, 32 heads, 8 keys (Grattafiori et al. 2024, arXiv 2407.21783, table 3), bfloat16."""
    sizes = {
        "hidden_size": width,
        "intermediate_size": 14336 * width // 4096,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    }
    with default_dtype(torch.bfloat16):
        model = pretrained("LlamaForCausalLM", "LlamaConfig", "sdpa", **sizes)
    return causal(model, training, batch, steps, vocabulary)


def mixtral(
    training: bool, batch: int, steps: int, width: int = 4096, layers: int = 32, vocabulary: int = 32_000
) -> Model:
    """Mixtral 8x7B: 8 experts of 14,336, 2 per token (Jiang et al. 2024, arXiv 2401.04088, table 1), bfloat16.

    Experts are one grouped matrix product: a loop over the tokens of each expert would depend on the data.
    """
    sizes = {
        "hidden_size": width,
        "intermediate_size": 14336 * width // 4096,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32_768,
        "experts_implementation": "grouped_mm",
    }
    with default_dtype(torch.bfloat16):
        model = pretrained("MixtralForCausalLM", "MixtralConfig", "sdpa", **sizes)
    return causal(model, training, batch, steps, vocabulary)
