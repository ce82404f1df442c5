"""Plans that keep tensors and state on a host, expanded and run by two routes: those of loadmaster and of the tests.

    python -m tests.offloads [--plans 500] [--seed 0]

Each problem is a small training step with state, on one or two devices with a host, with less memory than the step
takes; or the same step with random additions. Methods plan it. A plan counts if something stays on another device.
`tests.reference` expands it node by node and runs it by the rules read aloud; step, peaks, starts and sends must agree.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import numpy as np

from loadmaster import make_method
from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.methods.memory.recompute import Recompute
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import homes
from loadmaster.plans.expansion import expand
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate
from tests.reference import expand_slowly, judge
from tests.strategies import random_additions, random_plan

MOST_TRIES = 20  # problems for each plan that counts


@dataclass
class Found:
    """How many plans were judged, of which kinds, and where the two routes differ."""

    plans: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    differ: list[str] = field(default_factory=list)


def training(rng: Random) -> Graph:
    """Layers forward and backward; weights and the optimizer's state are overwritten, at once or at the end."""
    g, layers = GraphBuilder("training"), rng.randint(2, 5)
    x, kept, updates = g.tensor(rng.randint(10, 400), "input"), [], []
    for i in range(layers):
        weight = g.tensor(rng.randint(100, 900), "weight", name=f"w{i}")
        pre, out = g.tensor(rng.randint(10, 900), name=f"pre{i}"), g.tensor(rng.randint(10, 900), name=f"out{i}")
        g.op(f"mm{i}", "aten.mm.default", [x, weight], [pre], flops=rng.randint(1, 4000))
        g.op(f"act{i}", "aten.gelu.default", [pre], [out], flops=rng.randint(1, 50))
        kept.append((x, weight, pre))
        x = out
    grad = g.tensor(50, name="loss")
    g.op("loss", "aten.sum.default", [x], [grad], flops=5)
    for i in reversed(range(layers)):
        came, weight, pre = kept[i]
        back, down = g.tensor(rng.randint(10, 900)), g.tensor(rng.randint(10, 900))
        of_weight = g.tensor(rng.randint(100, 900), name=f"g{i}")
        g.op(f"act{i}.back", "aten.gelu_backward.default", [grad, pre], [back], flops=10)
        g.op(f"mm{i}.down", "aten.mm.default", [back, weight], [down], flops=rng.randint(1, 4000))
        g.op(f"mm{i}.weight", "aten.mm.default", [back, came], [of_weight], flops=rng.randint(1, 4000))
        updates.append((i, weight, of_weight))
        grad = down
    for i, weight, of_weight in updates if rng.random() < 0.5 else reversed(updates):
        states = [g.tensor(rng.randint(100, 1800), "state", name=f"m{i}.{n}") for n in range(rng.randint(1, 2))]
        made = [g.tensor(100, "state", alias_of=over) for over in (weight, *states)]
        waits = [f"mm{i}", f"mm{i}.down"]
        g.op(f"up{i}", "optim.adam", [weight, of_weight, *states], made, flops=rng.randint(1, 200), after=waits)
    return g.build()


def problem_of(graph: Graph, rng: Random) -> Problem:
    """On devices with less memory than the step takes on one, and a host with enough."""
    gpus = rng.randint(1, 2)
    devices = [Device(f"gpu{i}", "gpu", 2**40, 1e9, 1e9, rng.randint(0, 3)) for i in range(gpus)]
    devices.append(Device("host", "cpu", 2**40, 1e7, 1e8))
    pairs = [(a, b) for a in range(gpus + 1) for b in range(gpus + 1) if a != b]
    links = {pair: Link(10 ** rng.uniform(8, 10), rng.randint(0, 50)) for pair in pairs}
    channel = np.full((gpus + 1, gpus + 1), -1, np.int64)
    shared = rng.random() < 0.3  # one wire for both ways
    for number, (a, b) in enumerate(pairs):
        channel[a, b] = pairs.index((b, a)) if shared and a > b else number
    used = {int(c): n for n, c in enumerate(sorted(set(channel[channel >= 0].tolist())))}
    dense = ints([[used.get(int(c), -1) for c in row] for row in channel])
    whole = price(graph, Cluster("tight", tuple(devices), links, dense))
    peak = int(simulate(whole, Plan.of(whole, [0] * whole.num_ops)).peak_bytes[0])
    return price(graph, Cluster("tight", tuple(devices), links, dense), memory_limit=int(peak * rng.uniform(0.4, 0.97)))


def planned(problem: Problem, rng: Random) -> tuple[str, Plan]:
    """A method's plan, or a random one with random additions."""
    how = rng.choice(("random", "recompute", "recompute", "auto", "spread"))
    budget, seed = Budget(None, rng.choice((5, 20, 60))), rng.randrange(100)
    if how == "random":
        return how, at_random(problem, rng)
    if how == "auto":
        return how, solve(problem, "auto", budget, seed).plan
    inner = make_method("heft") if how == "spread" else OneDevice()
    method = Recompute(inner, again=rng.random() < 0.5, residents=True)
    return how, solve(problem, method, budget, seed).plan


def at_random(problem: Problem, rng: Random) -> Plan:
    """Any plan with any additions; none where there is nothing to add."""
    added = random_additions(rng, problem)
    return random_plan(rng, problem if added is None else expand(problem, added), fuse=False, sends=False, ties=False)


def differences(problem: Problem, plan: Plan) -> list[str]:
    """In which figures the two routes differ."""
    check(plan, problem)
    assert plan.added is not None
    expanded, slow = expand(problem, plan.added), expand_slowly(problem, plan.added)
    line, judged = simulate(problem, plan), judge(slow, moved(plan, expanded, slow))
    names, slow_names = expanded.graph.op_name, slow.graph.op_name
    columns = (line.send_tensor, line.send_src, line.send_dst, line.send_start_ns)
    sends = {(expanded.graph.tensor_name[t], *rest) for t, *rest in zip(*(c.tolist() for c in columns), strict=True)}
    slow_sends = {(slow.graph.tensor_name[t], src, dst, start) for t, src, dst, start, _ in judged.sends}
    starts = dict(zip(names, line.start_ns.tolist(), strict=True))
    same = {
        "step": line.step_ns == judged.step_ns,
        "peaks": line.peak_bytes.tolist() == judged.peak,
        "bytes over": line.over_bytes == judged.over_bytes,
        "starts": starts == dict(zip(slow_names, judged.start, strict=True)),
        "sends": sends == slow_sends,
    }
    return [what for what, agrees in same.items() if not agrees]


def moved(plan: Plan, expanded: Problem, slow: Problem) -> Plan:
    """The plan with its rows in the order of the other expansion, ops and tensors by their names."""
    op = {name: number for number, name in enumerate(expanded.graph.op_name)}
    of = np.array([op[name] for name in slow.graph.op_name])
    kernel = plan.kernel[of]
    lowest = {int(k): int(np.flatnonzero(kernel == k)[0]) for k in kernel}
    send_rank = plan.send_rank
    if send_rank is not None:
        tensor = {name: number for number, name in enumerate(expanded.graph.tensor_name)}
        send_rank = ints(send_rank[[tensor[name] for name in slow.graph.tensor_name]])
    kernels = ints([lowest[int(k)] for k in kernel])
    return Plan(plan.graph_digest, plan.cluster_digest, kernels, plan.device[of], plan.rank[of], send_rank)


def kinds_of(problem: Problem, plan: Plan) -> set[str]:
    """What the plan does with a host; empty where nothing stays."""
    if plan.added is None or not plan.added.num_stays:
        return set()
    home = homes(problem.graph, plan.added)
    kinds = {"state or weights live there"} if (home >= 0).any() else set()
    kinds |= {"activations wait there"} if ((plan.added.tensor >= 0) & (home < 0)).any() else set()
    kinds |= {"and ops run again"} if plan.added.num_again else set()
    return kinds | ({"and kernels"} if plan.fuses else set())


def run(plans: int, seed: int, say: bool = False) -> Found:
    """Judges so many plans with stays."""
    found = Found()
    for number in range(seed, seed + MOST_TRIES * plans):
        if found.plans == plans:
            break
        rng = Random(number)
        problem = problem_of(training(rng), rng)
        how, plan = planned(problem, rng)
        kinds = kinds_of(problem, plan)
        if not kinds:
            continue
        found.plans += 1
        found.kinds.update({*kinds, f"by {how}"})
        found.differ += [f"seed {number} ({how}): {what}" for what in differences(problem, plan)]
        if say and found.plans % 50 == 0:
            print(f"{found.plans} plans, {len(found.differ)} differences", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = run(options.plans, options.seed, say=True)
    print("\n".join(found.differ[:40]) or f"{found.plans} plans, no difference")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(found.kinds.items())))
    sys.exit(bool(found.differ) or found.plans < options.plans)


if __name__ == "__main__":
    main()
