"""The fused model of a step beside Inductor's: kernels, traffic and peak.

    PYTHONPATH=src:benchmarks python benchmarks/fusion_inductor.py FILE [--only gpt2,conv]
    PYTHONPATH=src:benchmarks python benchmarks/fusion_inductor.py FILE --gpu --seconds 230

Each captured step (forward, loss, backward, no optimizer) is lowered by Inductor up to its schedule with the rules of
its GPU backend; nothing is compiled. Beside it the kernels of greedy fusion of the same step, in the order of
Inductor's own rule for the peak, with light ops inlined. On both sides a kernel is one that runs: views, and the parts
of a call with several results, are none. Left out on Inductor's side are copies that only change the layout of what a
convolution reads, which are part of a convolution here. Bytes of a lookup are those of the rows it reads. Peaks include
inputs and weights.

With `--gpu`, on a machine with one: the schedule as made there, and the step by torch.compile, run, with its peak.
Written for torch 2.13, whose Inductor is private and may change.
"""

from __future__ import annotations

import argparse
import csv
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fidelity_models import Case
from torch import nn
from torch.nn import functional as F

from loadmaster.baselines.fusion.greedy import greedy_kernels
from loadmaster.bench import _inductor
from loadmaster.cost import price
from loadmaster.graph import Graph
from loadmaster.graph.kinds import bare_name
from loadmaster.importers.torch.building import without_memory
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import Target, fake_mode
from loadmaster.methods.memory.inlining import inlined
from loadmaster.passes import fuse
from loadmaster.plans import Plan
from loadmaster.plans.expansion import whole
from loadmaster.simulator import simulate
from loadmaster.zoo.diffusion import unet

BEGUN = time.perf_counter()


class Mlp(nn.Module):
    def __init__(self, act: Callable[..., Any] = F.gelu, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(512) if norm else nn.Identity() for _ in range(4))
        self.act, self.drop = act, nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = x + self.drop(self.act(part(norm(x))))
        return x


class Conv(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(8, 32) if norm else nn.Identity() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = F.relu(norm(part(x)))
        return x.mean((2, 3))


class Words(nn.Module):
    def __init__(self, layers: int = 2, drop: float = 0.0, loss: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4096, 256), nn.Linear(256, 4096)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, drop, batch_first=True) for _ in range(layers)
        )
        self.loss = loss

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) if self.loss else logits


Step = Callable[[], tuple[nn.Module, Any]]


def rows(module: Callable[[], nn.Module]) -> Step:
    return lambda: (module(), (torch.ones(1024, 512),))


def image(norm: bool) -> Step:
    return lambda: (Conv(norm), (torch.ones(8, 32, 64, 64),))


def words(layers: int, drop: float = 0.0, loss: bool = True) -> Step:
    return lambda: (Words(layers, drop, loss), (torch.zeros(8, 128, dtype=torch.long),))


def known(model: str, batch: int, length: int) -> Step:
    """A model of Hugging Face in its usual width, with about a quarter of its layers."""
    return lambda: Case(model, "float32", True, batch, length).build(torch.get_default_device().type, tiny=True)


STEPS: dict[str, Step] = {
    "mlp gelu": rows(Mlp),
    "mlp relu": rows(lambda: Mlp(F.relu)),
    "mlp softmax": rows(lambda: Mlp(lambda x: F.softmax(x, -1))),
    "mlp layer norm": rows(lambda: Mlp(norm=True)),
    "mlp dropout": rows(lambda: Mlp(drop=0.1)),
    "conv": image(False),
    "conv group norm": image(True),
    "encoder": words(2),
    "encoder dropout": words(1, 0.1),
    "encoder no loss": words(1, loss=False),
    "gpt2": known("gpt2", 8, 512),
    "bert": known("bert", 16, 128),
    "distilbert": known("distilbert", 8, 128),
    "albert": known("albert", 8, 128),
    "llama": known("llama", 4, 512),
    "t5 encoder": known("t5", 8, 128),
    "vit": known("vit", 8, 224),
    "resnet": known("resnet", 8, 224),
    "convnext": known("convnext", 8, 224),
    "mobilenet": known("mobilenet", 8, 224),
    "unet": lambda: unet(True, 8, 32, (1, 2), 64, 1),
}

# Ops of which Inductor makes several kernels, as rows and columns, or all and each, are different loops.
KERNELS = {
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
    "native_group_norm": 2,
    "native_group_norm_backward": 3,
    "embedding_dense_backward": 2,
}


# Of those and of batch norms, how often the largest tensor they read is read again: sums come first.
READ_AGAIN = {
    "native_batch_norm": 1,
    "_native_batch_norm_legit": 1,
    "_native_batch_norm_legit_functional": 1,
    "native_batch_norm_backward": 2,
    "native_group_norm": 1,
    "native_group_norm_backward": 2,
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
}


def scheduled(module: torch.fx.GraphModule) -> dict[str, int]:
    """Kernels, bytes and peak of Inductor's schedule of the whole step."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    given = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    mode = next(value.fake_mode for value in given if hasattr(value, "fake_mode"))
    with mode:
        plain = make_fx(module, decomposition_table=select_decomp_table(), tracing_mode="real")(*given)
        for node in plain.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
            if not node.users:  # asked for while tracing, and known since
                plain.graph.erase_node(node)
        plain.graph.eliminate_dead_code()
        with V.set_fake_mode(mode):
            joint_graph_passes(plain)
            replace_random_passes(plain)
            post_grad_passes(plain, is_inference=False)
        graph = GraphLowering(plain, example_inputs=given, shape_env=mode.shape_env)
        with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
            graph.run(*given)
            graph.init_wrapper_code()
            graph.scheduler = Scheduler(graph.operations)
            return facts_of(graph, graph.scheduler)


def facts_of(graph: Any, scheduler: Any) -> dict[str, int]:
    from torch._inductor import ir
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    nodes = scheduler.nodes
    called = [node for node in nodes if isinstance(node, ExternKernelSchedulerNode)]
    parts = [node for node in called if isinstance(node.node, ir.MultiOutput)]
    nothing = [node for node in nodes if isinstance(node, NopKernelSchedulerNode)]
    copies = [node for node in nodes if node not in called and node not in nothing and is_layout_copy(node)]
    moved = sum(bytes_of(graph, node) for node in nodes if node not in copies)
    moved += sum(size_of(buffer) for node in parts for buffer in node.get_outputs())
    return {
        "generated": len(nodes) - len(called) - len(nothing) - len(copies),
        "called": len(called) - len(parts),
        "copies": len(copies),
        "bytes": moved,
        "peak": peak_of(graph, scheduler),
    }


def is_layout_copy(node: Any) -> bool:
    """A convolution is called; what is generated in its name, from one tensor, only brings that into another layout."""
    if len({dep.name for dep in node.read_writes.reads}) != 1:
        return False  # what makes the tensor was computed with it
    return all(any("convolution" in str(one.target) for one in part.node.get_origins()) for part in node.get_nodes())


def bytes_of(graph: Any, node: Any) -> int:
    """As Inductor counts them, but of a tensor that is only looked up in no more than is read."""
    accesses = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    total = 0
    for name, count in accesses.items():
        reads = [dep for dep in node.read_writes.reads if dep.name == name]
        if reads and all(hasattr(dep, "is_indirect") and dep.is_indirect() for dep in reads):
            each = graph.get_dtype(name).itemsize
            count = min(count, sum(prod(int(size) for size in dep.size) * each for dep in reads))
        total += int(count)
    return total


def size_of(buffer: Any) -> int:
    """Bytes of its own."""
    layout = buffer.node.layout
    if type(layout).__name__ not in ("FixedLayout", "FlexibleLayout"):
        return 0
    return int(buffer.node.get_numel()) * int(buffer.node.get_dtype().itemsize)


def peak_of(graph: Any, scheduler: Any) -> int:
    """The most bytes at once when the nodes run in their final order; what only lives in a kernel has none."""
    from torch._inductor import ir

    place = {part.get_name(): at for at, node in enumerate(scheduler.nodes) for part in node.get_nodes()}
    stays = set(graph.get_output_names())
    change = np.zeros(len(scheduler.nodes) + 1, np.int64)
    for at, node in enumerate(scheduler.nodes):
        for buffer in node.get_outputs():
            users = [place[user.node.get_name()] for user in buffer.users if user.node.get_name() in place]
            if set(users) <= {at} and users and buffer.get_name() not in stays:
                continue
            made = at
            if isinstance(getattr(node, "node", None), ir.MultiOutput):  # it is there since the call
                made = place[scheduler.name_to_buf[node.node.inputs[0].get_name()].defining_op_name()]
            last = len(scheduler.nodes) - 1 if buffer.get_name() in stays else max([at, *users])
            change[made] += size_of(buffer)
            change[last + 1] -= size_of(buffer)
    values = [value for value in graph.graph_inputs.values() if hasattr(value, "get_numel")]
    held = sum(int(value.get_numel()) * value.get_dtype().itemsize for value in values)
    return int(change.cumsum().max()) + held


def ours(graph: Graph) -> dict[str, int]:
    import torch._inductor.memory as memory
    import torch._inductor.virtualized as virtual

    problem = price(graph, "1xa100-nvlink")
    kernel = greedy_kernels(problem)
    fused = fuse(problem, kernel)
    rank = np.empty(problem.num_ops, np.int64)
    rank[fused.heads[_inductor.order(fused, "best", memory, virtual)]] = np.arange(fused.num_ops)
    plan = inlined(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64), rank[kernel], kernel))
    expanded = whole(problem, plan)
    more = sum(KERNELS.get(bare_name(kind), 1) - 1 for kind in problem.graph.kind)
    moved = int(fuse(expanded, plan.kernel).traffic_bytes.sum())
    ways = enumerate(READ_AGAIN.get(bare_name(kind), 0) for kind in expanded.graph.kind)
    again = sum(times * int(expanded.graph.nbytes[expanded.graph.reads_of(op)].max()) for op, times in ways if times)
    return {
        "ops": problem.num_ops,
        "kernels": plan.num_kernels,
        "counted": plan.num_kernels + more,
        "bytes": moved,
        "bytes counted": moved + again,
        "peak": int(simulate(expanded, plan).peak_bytes[0]),
    }


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """What Inductor makes for a CPU, scheduled by the rules of Triton; convolutions keep the layout they have."""
    from torch._inductor import config

    with config.patch(cpu_backend="triton", layout_optimization=False):
        yield


def compare(name: str) -> dict[str, Any]:
    with without_memory(fake_mode()):
        module, inputs = STEPS[name]()
    given = ((), inputs) if isinstance(inputs, dict) else inputs
    captured = capture_step(module.train(), given, training=True, optimizer="none")
    with as_on_a_gpu():
        theirs = scheduled(captured.trace.module)
    mine = ours(captured.graph)
    kernels = theirs["generated"] + theirs["called"]
    return {
        "step": name,
        "ops": mine["ops"],
        "generated": theirs["generated"],
        "called": theirs["called"],
        "layout copies": theirs["copies"],
        "kernels": kernels,
        "ours": mine["kernels"],
        "ours counted": mine["counted"],
        "kernels ratio": round(mine["counted"] / kernels, 3),
        "bytes": theirs["bytes"],
        "our bytes": mine["bytes"],
        "bytes ratio": round(mine["bytes"] / theirs["bytes"], 3),
        "bytes counted ratio": round(mine["bytes counted"] / theirs["bytes"], 3),
        "peak": theirs["peak"],
        "our peak": mine["peak"],
        "peak ratio": round(mine["peak"] / theirs["peak"], 3),
    }


def on_the_gpu(name: str) -> dict[str, Any]:
    """The schedule for the device that is there, and the same step by torch.compile, run."""
    import torch._inductor.metrics as metrics

    with torch.device("cuda"):
        module, inputs = STEPS[name]()
    module = module.train().to("cuda")
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    row: dict[str, Any] = {"step": name}
    try:
        captured = capture_step(module, (args, kwargs), training=True, optimizer="none", target=Target(gpu=True))
        row |= {f"lowered {key}": value for key, value in scheduled(captured.trace.module).items()}
        row |= {f"ours {key}": value for key, value in ours(captured.graph).items()}
    except Exception as error:
        row["lowered"] = repr(error)[:200]
    for way, run in (("eager", module), ("compiled", torch.compile(module))):
        torch._dynamo.reset()
        metrics.reset()
        for turn in range(2):
            module.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            out = run(*args, **kwargs)
            out = out if isinstance(out, torch.Tensor) else out.loss
            out.float().mean().backward()
            torch.cuda.synchronize()
            row[f"{way} peak"] = torch.cuda.max_memory_allocated() if turn else 0
            del out
    row["compiled generated"] = metrics.generated_kernel_count
    row["compiled bytes"] = metrics.num_bytes_accessed
    row["compiled nodes before fusion"] = metrics.ir_nodes_pre_fusion
    return row


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("--only", default="")
    options.add_argument("--gpu", action="store_true")
    options.add_argument("--seconds", type=float, default=1e9, help="no step begins later than this")
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.only.split(",") if given.only else STEPS:
        if time.perf_counter() - BEGUN > given.seconds:
            break
        try:
            rows.append(on_the_gpu(name) if given.gpu else compare(name))
        except Exception:
            traceback.print_exc()
            continue
        print(f"[{time.perf_counter() - BEGUN:.0f}]", rows[-1], flush=True)
        with open(given.file, "w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
