"""Torch's own `activation_memory_budget` beside our plans: what its partitioner decides, priced by our simulator.

    PYTHONPATH=src:benchmarks python benchmarks/memory_partitioner.py FOLDER [--only gpt2,resnet50] [--workers 4]
        [--seconds 400]

Each training step of the zoo is traced as a joint graph in Inductor's own decomposition and given to torch's
partitioner (`min_cut_rematerialization_partition`, its knapsack solved by dynamic programming, ops weighed by their
flops, as is torch's default). The forward and the backward part that it returns, in its order and with all that it runs
again, are one step again, which is priced, fused and simulated as any other; of its kernels, its order and Inductor's
rule for the peak, with and without light ops inlined, the best counts. Beside it is our plan of the joint graph as it
was, at the peak that torch's decision needs. Times are over the fastest kernels of the joint graph in program order.
The budget of 1 is torch.compile's default; others are looked for until the peak is near a share of the fused plan's.
Prints as it goes and writes FOLDER/MODEL.json. Written for torch 2.11 to 2.13, whose partitioner is private.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import Case, run_beside
from torch import fx
from torch._functorch import config as functorch
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.baselines.fusion.greedy import greedy_kernels
from loadmaster.bench import _inductor
from loadmaster.cost import price
from loadmaster.graph import Graph
from loadmaster.importers.torch.building import without_memory
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.graph import captured_of
from loadmaster.importers.torch.step import Target, Trace, fake_mode
from loadmaster.methods.memory.inlining import inlined
from loadmaster.passes import fuse
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from loadmaster.zoo import find

MODELS = (
    "gpt2",
    "bert-base",
    "vit-base",
    "resnet50",
    "inception-v3-b32",
    "wavenet-2x18",
    "t5-base",
    "unet-ddpm",
)
SHARES = (0.6,)
HALVINGS = 5  # of the budget
Cell = dict[str, Any]


class Joint:
    """A training step as torch's partitioner takes it: forward and backward in one graph, without writes in place."""

    def __init__(self, name: str) -> None:
        entry, _ = find(name)
        self.name, self.optimizer = name, entry.optimizer
        with without_memory(fake_mode()):
            module, inputs = entry.model(True)
        target = Target(gpu=True)
        self.trace = capture_step(module, inputs, training=True, optimizer="none", target=target).trace
        self.given = [node.meta["val"] for node in self.trace.module.graph.find_nodes(op="placeholder")]
        self.mode = next(value.fake_mode for value in self.given if hasattr(value, "fake_mode"))
        self.step = self._decomposed()
        self.outputs = [node for node in self.step.graph.output_node().args[0] if node is not None]
        self.writes = [node for node in self.step.graph.nodes if node.target is torch.ops.aten.copy_.default]

    def _decomposed(self) -> fx.GraphModule:
        import torch._inductor.lowering  # which decompositions look into
        from torch._inductor.decomposition import select_decomp_table

        pure = torch.func.functionalize(self.trace.module, remove="mutations")
        step = self._traced(pure, select_decomp_table())
        return self._traced(fx.GraphModule(step, fx_graph_cse(step.graph)))

    def _traced(self, step: Any, table: Mapping[Any, Any] | None = None) -> fx.GraphModule:
        """With values of their own for every node."""
        with self.mode, torch.no_grad():
            plain = [value.detach() for value in self.given]
            traced = make_fx(step, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True)(*plain)
        for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
            if not node.users:  # asked for while tracing, and known since
                traced.graph.erase_node(node)
        traced.graph.eliminate_dead_code()
        return traced

    def graph(self, step: fx.GraphModule) -> Graph:
        results = list(step.graph.output_node().args[0])
        gradients = dict(zip(self.trace.gradients, results[1:], strict=True))
        trace = Trace(step, self.trace.given, results[:1], gradients, self.trace.inputs, None)
        return captured_of(trace, self.optimizer, self.name, training=True).graph

    def parted(self, budget: float) -> fx.GraphModule:
        """The step as torch would run it with that budget."""
        joint, count = self._as_torch_has_it()
        settings = {"activation_memory_budget": budget, "cse": False}
        with functorch.patch(settings), self.mode, fx.traceback.preserve_node_meta():
            forward, backward = min_cut_rematerialization_partition(joint, (), num_fwd_outputs=count)
        return self._traced(self._together(forward, backward, count))

    def _as_torch_has_it(self) -> tuple[fx.GraphModule, int]:
        """Inputs by torch's names, the gradient of the loss among them; what is written over at last is an output."""
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        loss, *gradients = self.outputs
        placeholders = [node for node in self.step.graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(placeholders, 1):
            env[node] = graph.placeholder(f"primals_{number}")
            env[node].meta = dict(node.meta)
        seed = next(node for node in self.step.graph.nodes if self._is_seed(node, loss))
        env[seed] = graph.placeholder("tangents_1")
        env[seed].meta = dict(seed.meta)
        for node in self.step.graph.nodes:
            if node not in env and node.op != "output" and node not in self.writes:
                env[node] = graph.node_copy(node, lambda n: env[n])
        written = [env[write.args[1]] for write in self.writes]
        graph.output([env[loss], *written, *(env[node] for node in gradients)])
        return fx.GraphModule(self.step, graph), 1 + len(written)

    @staticmethod
    def _is_seed(node: fx.Node, loss: fx.Node) -> bool:
        """The first gradient: ones of the shape of the loss."""
        made = node.target in (torch.ops.aten.full_like.default, torch.ops.aten.full.default)
        return made and node.args[1] == 1 and node.meta["val"].shape == loss.meta["val"].shape

    def _together(self, forward: fx.GraphModule, backward: fx.GraphModule, count: int) -> fx.GraphModule:
        graph, here = fx.Graph(), dict[str, fx.Node]()
        for number, node in enumerate(self.step.graph.find_nodes(op="placeholder"), 1):
            here[f"primals_{number}"] = graph.placeholder(node.name)
        ends = list(forward.graph.output_node().args[0])
        self._copy(forward, graph, here)
        loss, *written = (here[node.name] for node in ends[:count])
        for write, value in zip(self.writes, written, strict=True):
            graph.call_function(write.target, (here[self._primal(write.args[0])], value))
        here["tangents_1"] = graph.call_function(torch.ops.aten.ones_like.default, (loss,))
        self._copy(backward, graph, here)
        found = [here[node.name] if node is not None else None for node in backward.graph.output_node().args[0]]
        graph.output([loss, *found[-len(self.outputs) + 1 :]] if len(self.outputs) > 1 else [loss])
        return fx.GraphModule(self.step, graph)

    def _primal(self, node: fx.Node) -> str:
        return f"primals_{list(self.step.graph.find_nodes(op='placeholder')).index(node) + 1}"

    @staticmethod
    def _copy(part: fx.GraphModule, graph: fx.Graph, here: dict[str, fx.Node]) -> None:
        """Appends the ops of a part; what runs again takes the place of what it was."""
        mine = dict[fx.Node, fx.Node]()
        for node in part.graph.nodes:
            if node.op == "placeholder":
                mine[node] = here[node.name]
            elif node.op != "output":
                mine[node] = here[node.name] = graph.node_copy(node, lambda n: mine[n])


def best_of(case: Case) -> tuple[int, int]:
    """(peak, step) of the least peak within 2 % of the fastest, of several ways to run the step."""
    found = []
    for plan in plans_of(case.problem, case.plan):
        line = simulate(case.problem, plan)
        found.append((int(line.peak_bytes[0]), line.step_ns))
    fastest = min(step for _, step in found)
    return min(pair for pair in found if pair[1] <= 1.02 * fastest)


def plans_of(problem: Problem, plan: Plan) -> Iterator[Plan]:
    import torch._inductor.memory as memory
    import torch._inductor.virtualized as virtual

    yield plan
    yield inlined(problem, plan)
    for kernel in (plan.kernel, greedy_kernels(problem)):
        fused = fuse(problem, kernel)
        rank = np.empty(problem.num_ops, np.int64)
        try:
            order = _inductor.order(fused, "best", memory, virtual)
        except (AttributeError, TypeError) as cause:
            print("Inductor's order is not known with this torch:", cause, flush=True)
            return
        rank[fused.heads[order]] = np.arange(fused.num_ops)
        ordered = Plan.of(problem, np.zeros(problem.num_ops, np.int64), rank[kernel], kernel)
        yield ordered
        yield inlined(problem, ordered)


class Beside:
    """The joint graph with its fused plan, and what torch makes of it."""

    def __init__(self, name: str) -> None:
        self.begun = time.perf_counter()
        self.joint = Joint(name)
        self.case = Case(price(self.joint.graph(self.joint.step), "1xa100-nvlink"))
        self.known: dict[float, Cell] = {}

    def theirs(self, budget: float) -> Cell:
        if budget not in self.known:
            case = Case(price(self.joint.graph(self.joint.parted(budget)), "1xa100-nvlink"))
            peak, took = best_of(case)
            again = case.problem.num_ops - self.case.problem.num_ops
            cell = {"budget": budget, "peak": peak / self.case.peak, "step": took / self.case.step, "again": again}
            print(f"[{time.perf_counter() - self.begun:.0f}]", self.joint.name, cell, flush=True)
            self.known[budget] = cell
        return self.known[budget]

    def near(self, share: float) -> Cell:
        """The budget whose peak is nearest to the share of the fused peak, by halving."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self.theirs(middle)["peak"] > share:
                high = middle
            else:
                low = middle
        return min(self.known.values(), key=lambda cell: abs(cell["peak"] - share))

    def with_ours(self, cell: Cell) -> Cell:
        """Ours at its peak, or at the fused one where that is less."""
        if cell["peak"] >= 1:
            return cell | {"our step": 1.0, "our peak": 1.0, "our fits": True, "our again": 0}
        ours = self.case.ours(cell["peak"] * self.case.peak)
        return cell | {f"our {key}": value for key, value in ours.items()}


def rows_of(name: str) -> Iterator[Cell]:
    """The row of a model, as far as it is known."""
    beside = Beside(name)
    case = beside.case
    row = {"model": name, "ops": case.problem.num_ops, "ms": case.step / 1e6, "mib": case.peak >> 20}
    row["torch"] = str(torch.__version__)
    row[str(SHARES[0])] = beside.with_ours(beside.near(SHARES[0]))
    yield row
    row["1"] = beside.with_ours(beside.theirs(1.0))
    yield row | {"all": list(beside.known.values())}
    for share in SHARES[1:]:
        row[str(share)] = beside.with_ours(beside.near(share))
        yield row


@contextmanager
def quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default=",".join(MODELS))
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--seconds", type=float, default=1e9)
    options.add_argument("--model", default="", help="this one, in this process")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.model:
        with quiet():
            for row in rows_of(given.model):
                (given.folder / f"{given.model}.json").write_text(json.dumps(row))
                print(row, flush=True)
        return
    names = [name for name in given.only.split(",") if not (given.folder / f"{name}.json").exists()]
    commands = [[sys.executable, __file__, str(given.folder), "--model", name] for name in names]
    run_beside(commands, given.workers, given.seconds)


if __name__ == "__main__":
    main()
