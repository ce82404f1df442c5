"""How many kernels Inductor makes of a captured step, and how many our rules of fusion do.

    PYTHONPATH=src python benchmarks/fusion_inductor.py FILE [--only mlp,conv]

The captured step (forward, loss, backward) is lowered by Inductor up to its schedule, as for the CPU; nothing is
compiled. Counted are kernels that it generates and calls of outside kernels (matrix products, convolutions); beside
them the kernels of greedy fusion of the same step, as our rules have it and with outside kernels left alone. Written
for torch 2.13, whose Inductor is private and may change.
"""

from __future__ import annotations

import argparse
import csv
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from loadmaster.cost import price
from loadmaster.graph.kinds import HEAVY, work_of
from loadmaster.importers.torch.export import capture_step
from loadmaster.optimizers.fusion.greedy import greedy_kernels


class Mlp(nn.Module):
    def __init__(self, act: Callable[..., Any] = F.gelu, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64) if norm else nn.Identity()
        self.act, self.drop = act, nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + self.drop(self.act(part(self.norm(x))))
        return x


class Conv(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(2, 8) if norm else nn.Identity() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = F.relu(norm(part(x)))
        return x.mean((2, 3))


class Words(nn.Module):
    def __init__(self, layers: int = 2, drop: float = 0.0, loss: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(128, 64), nn.Linear(64, 128)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, drop, batch_first=True) for _ in range(layers)
        )
        self.loss = loss

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) if self.loss else logits


ROWS, IMAGE, IDS = torch.ones(8, 64), torch.ones(2, 8, 16, 16), torch.zeros(2, 16, dtype=torch.long)
STEPS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "mlp gelu": (Mlp(), ROWS),
    "mlp relu": (Mlp(F.relu), ROWS),
    "mlp silu": (Mlp(F.silu), ROWS),
    "mlp tanh": (Mlp(torch.tanh), ROWS),
    "mlp norm": (Mlp(norm=True), ROWS),
    "mlp softmax": (Mlp(lambda x: F.softmax(x, -1)), ROWS),
    "mlp dropout": (Mlp(drop=0.1), ROWS),
    "conv": (Conv(False), IMAGE),
    "conv norm": (Conv(True), IMAGE),
    "words 1": (Words(1), IDS),
    "words 2": (Words(2), IDS),
    "words dropout": (Words(1, 0.1), IDS),
    "words no loss": (Words(1, loss=False), IDS),
}


def inductor_kernels(module: torch.fx.GraphModule) -> tuple[int, int]:
    """(generated, outside) of Inductor's schedule of the whole step."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode, Scheduler
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    given = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    mode = next(value.fake_mode for value in given if hasattr(value, "fake_mode"))
    with mode:
        plain = make_fx(module, decomposition_table=select_decomp_table(), tracing_mode="real")(*given)
        with V.set_fake_mode(mode):
            replace_random_passes(plain)
        graph = GraphLowering(plain, example_inputs=given, shape_env=mode.shape_env)
        with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
            graph.run(*given)
            graph.init_wrapper_code()
            nodes = Scheduler(graph.operations).nodes
    outside = sum(isinstance(node, ExternKernelSchedulerNode) for node in nodes)
    nothing = sum(isinstance(node, NopKernelSchedulerNode) for node in nodes)
    return len(nodes) - outside - nothing, outside


def our_kernels(graph: Any) -> tuple[int, int]:
    """(kernels of greedy fusion, the same with matrix products and convolutions left alone)."""
    problem = price(graph, "1xa100-nvlink")
    apart = tuple("copy_" if work_of(kind) == HEAVY else kind for kind in problem.graph.kind)
    alone = replace(problem, graph=replace(problem.graph, kind=apart))
    return len(np.unique(greedy_kernels(problem))), len(np.unique(greedy_kernels(alone)))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("--only", default="")
    given = options.parse_args()
    rows = []
    for name, (module, inputs) in STEPS.items():
        if given.only and name not in given.only.split(","):
            continue
        try:
            captured = capture_step(module.train(), (inputs,), training=True, optimizer="none")
            theirs, ours = inductor_kernels(captured.trace.module), our_kernels(captured.graph)
        except Exception:
            traceback.print_exc()
            continue
        rows.append((name, captured.graph.num_ops, *theirs, sum(theirs), *ours))
        print(*rows[-1], flush=True)
    with open(given.file, "w", newline="") as file:
        csv.writer(file).writerows(
            [("step", "ops", "generated", "outside", "inductor", "ours", "products alone"), *rows]
        )


if __name__ == "__main__":
    main()
