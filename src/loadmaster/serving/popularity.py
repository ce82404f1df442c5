"""Popularity: how many of a layer's experts a step is expected to need.

A router sends each of T tokens to k of n experts. Where expert e is chosen with probability p_e for a token, a step
needs the share sum_e 1 - (1 - p_e)^T / n of the layer's experts. Without a census all are taken as equally popular,
which asks for the most: p_e = k / n. With one, layers whose routing is focused need fewer, and their experts are the
first to go to the host; with one sequence at a time a token needs k experts whatever they are, and nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InvalidSetting
from loadmaster.files.text import read_json, write_json

CENSUS_SCHEMA = "loadmaster.census/1"


@dataclass(frozen=True)
class Popularity:
    """Of the experts of a model.

    Attributes:
        experts, chosen: of a layer, and of them for a token.
        counts: [layers] how often each expert was chosen; empty: all equally.
    """

    experts: int
    chosen: int
    counts: tuple[tuple[int, ...], ...] = ()

    def share(self, layer: int, tokens: int) -> float:
        """Share of the layer's experts that a step of so many tokens is expected to need.

        >>> focused = Popularity(4, 1, ((97, 1, 1, 1),))
        >>> [round(p.share(0, 8), 2) for p in (Popularity(4, 1), focused)]
        [0.9, 0.31]
        """
        if not self.experts:
            return 0.0
        chances = self._chances(layer)
        return float(1.0 - np.power(1.0 - chances, tokens).mean())

    def _chances(self, layer: int) -> NDArray[np.float64]:
        counts = np.array(self.counts[layer], float) if layer < len(self.counts) else np.zeros(0)
        if not counts.sum():
            return np.full(self.experts, self.chosen / self.experts)
        chances: NDArray[np.float64] = np.minimum(counts / counts.sum() * self.chosen, 1.0)
        return chances

    def least_used(self, layers: int, tokens: int) -> list[int]:
        """Layers whose experts are needed least, first; the first layers where all are alike."""
        shares = [round(self.share(layer, max(1, tokens)), 6) for layer in range(layers)]
        return sorted(range(layers), key=lambda layer: (shares[layer], layer))


def read_census(path: Path, experts: int, chosen: int, layers: int) -> Popularity:
    """The popularity that a census file says; InvalidSetting where it is of another model."""
    data = read_json(path)
    rows = data.get("counts") if isinstance(data, dict) and data.get("schema") == CENSUS_SCHEMA else None
    good = isinstance(rows, list) and all(
        isinstance(row, list) and all(isinstance(n, int) and 0 <= n < 2**53 for n in row) for row in rows
    )
    if not good or rows is None:
        raise InvalidSetting(f"'{path}' is no census of experts", "--census", f"give one of schema {CENSUS_SCHEMA}")
    if len(rows) != layers or any(len(row) not in (0, experts) for row in rows):
        what = f"'{path}' counts {len(rows)} layers, and the model has {layers} of {experts} experts"
        raise InvalidSetting(what, "--census", "record it from this model, with an empty list for a dense layer")
    return Popularity(experts, chosen, tuple(tuple(row) for row in rows))


def record_census(model: Any, batches: Any, path: Path) -> None:
    """Runs a Hugging Face mixture of experts over batches of token ids and writes how often each expert was chosen."""
    import torch

    counts: list[Any] = []
    chosen = int(model.config.num_experts_per_tok)
    for ids in batches:
        with torch.no_grad():
            routed = model(input_ids=ids, output_router_logits=True).router_logits
        counts = counts or [torch.zeros(layer.shape[-1], dtype=torch.long) for layer in routed]
        for total, layer in zip(counts, routed, strict=True):
            picked = layer.topk(chosen, dim=-1).indices.flatten()
            total += torch.bincount(picked.cpu(), minlength=len(total))
    write_json({"schema": CENSUS_SCHEMA, "counts": [total.tolist() for total in counts]}, path)
