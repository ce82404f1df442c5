"""Fits what the host needs to ask for ops (loadmaster.cost.hosting) to steps of the models that may be fitted to.

    python benchmarks/fidelity_host.py  # constants, errors with one model left out, and with less in the model

Each step was timed beside a bare call, so that a slow minute of the host is not taken for a slow op.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import fidelity
import numpy as np
from scipy.optimize import least_squares, nnls

from loadmaster.baselines.fusion.greedy import GreedyFusion
from loadmaster.cost import Measured, hosting, price
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate


@dataclass(frozen=True)
class Asked:
    """One step as the host sees it: what it takes the device, and what the host has to do for it."""

    case: str
    bare_ns: float
    step_ns: float
    op_ns: np.ndarray
    calls: np.ndarray
    weight: np.ndarray  # 0.5 for halves of one call
    views: np.ndarray
    update: np.ndarray
    back: int  # first op of the backward pass

    @property
    def model(self) -> str:
        return self.case.partition("-")[0]


def eager_steps() -> list[Asked]:
    """Each in the two runs that have it; of held-out models the first."""
    ops, runs = fidelity.op_rows(), (fidelity.eager_steps(), fidelity.host_steps())
    learned, found = fidelity.Learned(), []
    for graph in fidelity.cases(more=True):
        cost = Measured({fidelity.KIND: fidelity.times_of(graph, ops)}, {fidelity.KIND: learned})
        problem = price(graph, fidelity.machine("graphs"), cost=cost)
        kinds = problem.graph.kind
        back = next((op for op, kind in enumerate(kinds) if "backward" in kind), len(kinds))
        columns = (
            problem.op_ns[:, 0],
            np.array([hosting.calls_of(kind) for kind in kinds]),
            hosting.halves(problem.graph),
            np.diff(problem.source_ops, prepend=-1) - 1,
            np.array([kind.startswith("optim.") for kind in kinds]),
        )
        for run in runs[:1] if fidelity.held_out(graph.name) else runs:
            if graph.name in run:
                step_ms, bare_ns = run[graph.name]
                found.append(Asked(graph.name, bare_ns, step_ms * 1e6, *columns, back))
    return found


def compiled_steps() -> list[Asked]:
    """Of greedily fused kernels, in the order in which they are asked for."""
    ops, real, masked = fidelity.op_rows(), fidelity.compiled_steps(), fidelity.traced()
    learned, found = fidelity.Learned(), []
    for graph in fidelity.cases():
        if graph.name not in real:
            continue
        graph = masked.get(graph.name, graph)
        cost = Measured({fidelity.KIND: fidelity.times_of(graph, ops)}, {fidelity.KIND: learned})
        problem = price(graph, fidelity.machine("graphs"), cost=cost)
        timeline = simulate(problem, solve(problem, GreedyFusion(), Budget(None, 1), 0).plan)
        turns, kernel = np.unique(timeline.turn, return_inverse=True)
        calls, update, weight = np.zeros(len(turns)), np.zeros(len(turns), bool), np.ones(len(turns))
        np.minimum.at(weight, kernel, hosting.halves(problem.graph))
        np.maximum.at(calls, kernel, [hosting.calls_of(kind) for kind in problem.graph.kind])
        np.maximum.at(update, kernel, [kind.startswith("optim.") for kind in problem.graph.kind])
        op_ns = np.zeros(len(turns))
        op_ns[kernel] = timeline.end_ns - timeline.start_ns
        step_ms, bare_ns = real[graph.name]
        shape = weight, np.zeros(len(turns)), update, len(turns)
        found.append(Asked(graph.name, bare_ns, step_ms * 1e6, op_ns, calls, *shape))
    return found


def compiled(step: Asked, x: Sequence[float]) -> float:
    """`x`: bare calls for each of a kernel's own, for a kernel, for a weight, and before the first kernel."""
    asked = np.where(step.update, x[2], (x[0] * step.calls + x[1]) * step.weight)
    asked[0] += x[3]
    return modelled_ns(step, asked)


def modelled_ns(step: Asked, asked: np.ndarray, strain: float = hosting.STRAIN) -> float:
    """Program order on one device: each op waits for the one before and for the host."""
    rest = np.cumsum(step.op_ns[::-1])[::-1]
    bare_ns = step.bare_ns * (step.bare_ns / hosting.USUAL_NS) ** (strain - 1)
    return float((np.cumsum(asked * bare_ns) + rest).max())


def eager(step: Asked, x: Sequence[float]) -> float:
    forward, backward, inference, updated, strain = x[0:3], x[3:6], (x[0], *x[6:8]), x[8], x[9]

    def way(w: Sequence[float]) -> np.ndarray:
        return (w[0] * step.calls + w[1]) * step.weight + w[2] * step.views

    if not step.update.any():
        return modelled_ns(step, way(inference), strain)
    places = np.arange(len(step.op_ns))
    asked = np.where(places < step.back, way(forward), way(backward))
    return modelled_ns(step, np.where(step.update, updated, asked), strain)


def by_parts(steps: list[Asked]) -> dict[str, list[float]]:
    """Bare calls for each call of a library, op and view, from what each part of a step alone took the host; for the
    update, for each weight."""
    rows = fidelity.steps("host.csv")
    parts: dict[str, list[tuple[list[float], float]]] = {}
    for step in {step.case: step for step in steps}.values():
        row = rows.get(step.case)
        if row is None or row["note"] or fidelity.held_out(step.case):
            continue
        places, train = np.arange(len(step.op_ns)), bool(step.update.any())
        spans = {"forward": places < step.back, "backward": (places >= step.back) & ~step.update}
        for name, some in spans.items() if train else [("inference", ~step.update)]:
            work = [float((column * step.weight)[some].sum()) for column in (step.calls, np.ones(len(places)))]
            taken = float(row["forward_ms" if name == "inference" else f"{name}_ms"])
            parts.setdefault(name, []).append(
                ([*work, float(step.views[some].sum())], taken * 1e6 / float(row["bare_ns"]))
            )
        if train:
            taken = float(row["update_ms"]) * 1e6 / float(row["bare_ns"])
            parts.setdefault("update", []).append(([float(step.update.sum()), 1.0, 0.0], taken))
    found = {}
    for name, samples in parts.items():
        work, taken = np.array([work for work, _ in samples]), np.array([taken for _, taken in samples])
        found[name] = list(nnls(work / taken[:, None], np.ones(len(taken)))[0])
        off, shown = np.abs(work @ found[name] / taken - 1), [round(float(value), 2) for value in found[name]]
        print(f"  {name}: {shown}, off by {np.median(off):.0%} (median), {off.max():.0%}")
    return found


def fitted(steps: list[Asked], model: Callable[[Asked, Sequence[float]], float], start: Sequence[float]) -> list[float]:
    def errors(x: Sequence[float]) -> list[float]:
        return [float(np.log(model(step, x) / step.step_ns)) for step in steps] + [1e-3 * value for value in x]

    bounds = (0, [100] * len(start))
    return list(least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=0.1).x)


def report(name: str, steps: list[Asked], model: Callable[[Asked, Sequence[float]], float], start: list[float]) -> None:
    some = [step for step in steps if not fidelity.held_out(step.case)]
    others = [step for step in steps if fidelity.held_out(step.case)]
    x = fitted(some, model, start)
    print(name, [round(float(value), 2) for value in x])
    left_out = []
    for one in dict.fromkeys(step.model for step in some):
        without = fitted([step for step in some if step.model != one], model, start)
        left_out += [abs(model(step, without) / step.step_ns - 1) for step in some if step.model == one]
    found = {"fitted": [abs(model(step, x) / step.step_ns - 1) for step in some], "one model left out": left_out}
    found["held out"] = [abs(model(step, x) / step.step_ns - 1) for step in others]
    for label, errors in found.items():
        near = sum(error <= 0.1 for error in errors)
        print(
            f"  {label}: {len(errors)} steps, {statistics.median(errors):.1%}, {near} near, {max(errors):.0%} at worst"
        )


def without(steps: list[Asked], what: str) -> list[Asked]:
    """The same steps with less known of them."""
    if what == "the bare call beside each step":
        middle = statistics.median(step.bare_ns for step in steps)
        return [replace(step, bare_ns=middle) for step in steps]
    if what == "what kinds of ops take":
        return [replace(step, calls=np.ones(len(step.calls))) for step in steps]
    return [replace(step, back=len(step.op_ns)) for step in steps]  # forward and backward apart


PARTS = ("the bare call beside each step", "what kinds of ops take", "forward and backward apart")


def main() -> None:
    steps = eager_steps()
    by_parts(steps)
    start = [1.4, 1, 1, 0.9, 0.9, 0.5, 0.6, 0.5, 3, 1.2]
    report("eager", steps, eager, start)
    for what in PARTS:
        report(f"eager without {what}", without(steps, what), eager, start)
    report("eager without weights", steps, lambda step, x: eager(step, [*x[:8], 0.0, x[9]]), start)
    steps, start = compiled_steps(), [1, 1, 2, 10]
    report("compiled", steps, compiled, start)
    for what in PARTS[:2]:
        report(f"compiled without {what}", without(steps, what), compiled, start)
    report("compiled without weights", steps, lambda step, x: compiled(step, [*x[:2], 0.0, x[3]]), start)


if __name__ == "__main__":
    main()
