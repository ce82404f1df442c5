"""Recurrent language and translation models, unrolled in time: every cell of every step is its own ops.

No dropout: random ops keep their program order, which would chain cells that are independent of each other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from loadmaster.zoo.pieces import Model, token_loss, tokens

State = tuple[Tensor, Tensor]  # hidden and cell, each [batch, width]


class LstmCell(nn.Module):
    """One step of an LSTM without peepholes (Zaremba, Sutskever and Vinyals 2014, arXiv 1409.2329, section 3.1)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.from_input = nn.Linear(inputs, 4 * width)
        self.from_hidden = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, state: State) -> State:
        hidden, cell = state
        gates = self.from_input(x) + self.from_hidden(hidden)
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.sigmoid(leave) * torch.tanh(cell), cell

    def start(self, like: Tensor) -> State:
        return like.new_zeros(like.shape[0], self.width), like.new_zeros(like.shape[0], self.width)


def unroll(cell: LstmCell, steps: Sequence[Tensor]) -> list[Tensor]:
    """The hidden states of `cell` over `steps`, each [batch, inputs]."""
    state = cell.start(steps[0])
    hidden = []
    for x in steps:
        state = cell(x, state)
        hidden.append(state[0])
    return hidden


class Bidirectional(nn.Module):
    """Two cells over the same steps, one from each end, side by side."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.ahead = LstmCell(inputs, width)
        self.back = LstmCell(inputs, width)

    def forward(self, steps: Sequence[Tensor]) -> list[Tensor]:
        ahead = unroll(self.ahead, steps)
        back = unroll(self.back, steps[::-1])[::-1]
        return [torch.cat(pair, dim=-1) for pair in zip(ahead, back, strict=True)]


class Rnnlm(nn.Module):
    """Stacked LSTM layers between an embedding and a softmax (arXiv 1409.2329, section 3)."""

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LstmCell(width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor, targets: Tensor | None = None) -> Tensor:
        steps = list(self.embedding(words).unbind(1))
        for layer in self.layers:
            assert isinstance(layer, LstmCell)
            steps = unroll(layer, steps)
        logits: Tensor = self.head(torch.stack(steps, dim=1))
        return logits if targets is None else token_loss(logits, targets)


class Encoder(nn.Module):
    """GNMT's encoder: a bidirectional bottom layer, residual connections from the third layer on (section 3.1, 3.2)."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        stacked = [LstmCell(2 * width if i == 1 else width, width) for i in range(1, layers)]
        self.layers = nn.ModuleList([Bidirectional(width, width), *stacked])

    def forward(self, steps: Sequence[Tensor]) -> list[Tensor]:
        hidden: list[Tensor] = self.layers[0](steps)
        for i, layer in enumerate(self.layers):
            if isinstance(layer, LstmCell):
                above = unroll(layer, hidden)
                hidden = [h + x for h, x in zip(above, hidden, strict=True)] if i >= 2 else above
        return hidden


class AdditiveAttention(nn.Module):
    """Additive attention with one hidden layer (Bahdanau, Cho and Bengio 2014, arXiv 1409.0473, appendix A.1.2)."""

    def __init__(self, width: int, memory: int) -> None:
        super().__init__()
        self.from_query = nn.Linear(width, width, bias=False)
        self.from_memory = nn.Linear(memory, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        scores = self.score(torch.tanh(self.from_query(query).unsqueeze(1) + keys))
        weights = torch.softmax(scores, dim=1)
        return torch.bmm(weights.transpose(1, 2), memory).squeeze(1)


class Decoder(nn.Module):
    """GNMT's decoder: the bottom layer's output asks for the context that every layer reads (section 3, equation 4)."""

    def __init__(self, layers: int, width: int, memory: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(width, memory)
        self.layers = nn.ModuleList(LstmCell(width + memory, width) for _ in range(layers))

    def forward(self, steps: Sequence[Tensor], memory: Tensor) -> list[Tensor]:
        hidden, contexts = self.bottom(steps, memory)
        for i, layer in enumerate(self.layers):
            if i == 0:
                continue
            assert isinstance(layer, LstmCell)
            above = unroll(layer, [torch.cat(pair, dim=-1) for pair in zip(hidden, contexts, strict=True)])
            hidden = [h + x for h, x in zip(above, hidden, strict=True)] if i >= 2 else above
        return hidden

    def bottom(self, steps: Sequence[Tensor], memory: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The only layer that must alternate with the attention: it reads the context of the step before."""
        layer = self.layers[0]
        assert isinstance(layer, LstmCell)
        state, keys = layer.start(steps[0]), self.attention.from_memory(memory)
        context = memory.new_zeros(memory.shape[0], memory.shape[2])
        hidden, contexts = [], []
        for x in steps:
            state = layer(torch.cat([x, context], dim=-1), state)
            context = self.attention(state[0], keys, memory)
            hidden.append(state[0])
            contexts.append(context)
        return hidden, contexts


class Gnmt(nn.Module):
    """Google's translation model (Wu et al. 2016, arXiv 1609.08144, section 3)."""

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, width)
        self.target_embedding = nn.Embedding(vocabulary, width)
        self.encoder = Encoder(layers, width)
        self.decoder = Decoder(layers, width, memory=2 * width if layers == 1 else width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, words: Tensor, targets: Tensor | None = None) -> Tensor:
        memory = torch.stack(self.encoder(self.source_embedding(source).unbind(1)), dim=1)
        hidden = self.decoder(self.target_embedding(words).unbind(1), memory)
        logits: Tensor = self.head(torch.stack(hidden, dim=1))
        return logits if targets is None else token_loss(logits, targets)


def rnnlm(training: bool, layers: int, width: int, vocabulary: int, batch: int, steps: int) -> Model:
    words = tokens(batch, steps, vocabulary)
    module = Rnnlm(layers, width, vocabulary).train(training)
    return module, (words, words.clone()) if training else (words,)


def gnmt(training: bool, layers: int, width: int, vocabulary: int, batch: int, steps: int) -> Model:
    """Source and target sentences of `steps` words each."""
    source, words = tokens(batch, steps, vocabulary), tokens(batch, steps, vocabulary)
    module = Gnmt(layers, width, vocabulary).train(training)
    return module, (source, words, words.clone()) if training else (source, words)
