"""Small torch models, and questions to ask of their captured graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.graph import Graph


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).sum()


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        query, key, value = self.attention(self.norm(x)).view(batch, steps, 3, 2, width // 2).unbind(2)
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        x = x + self.drop(mixed.transpose(1, 2).reshape(batch, steps, width))
        return x + self.drop(self.outer(F.gelu(self.inner(x))))


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(Block(8, dropout) for _ in range(2))
        self.head = nn.Linear(8, 50)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


class ConvNet(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=inplace)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.norm(self.conv(x))).mean((2, 3)))


WORDS = torch.arange(12).view(2, 6)
IMAGES = torch.ones(2, 4, 6, 6)


def ops(graph: Graph, kind: str) -> list[int]:
    return [op for op in range(graph.num_ops) if graph.kind[op].startswith(kind)]


def kinds(graph: Graph) -> list[str]:
    """Of the ops that are not views, in order, without their overloads."""
    return [graph.kind[op].split(".")[1] for op in range(graph.num_ops) if not graph.is_view[op]]


def owned_bytes(graph: Graph, role: int) -> int:
    return int(graph.nbytes[(graph.role == role) & (graph.alias_of < 0)].sum())


def readers_of_memory(graph: Graph, tensor: int) -> set[int]:
    """Ops that read the tensor's memory, through whatever alias."""
    same = [t for t in range(graph.num_tensors) if graph.owner[t] == graph.owner[tensor]]
    return {int(op) for t in same for op in graph.readers_of(t)}
