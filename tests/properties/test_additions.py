"""What a plan adds: expanded by two routes, judged by two, and never changing what is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.files import plan_from_json, plan_to_json
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import expand, keeps_to
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Sharing, lower_bound
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.simulator import Timeline, settle, simulate
from tests.graphs import pair
from tests.reference import expand_slowly, judge
from tests.strategies import additions, plans, problems


def same_plan_of(other: Problem, problem: Problem, plan: Plan) -> Plan:
    """The plan for the same ops in another order."""
    place = {name: op for op, name in enumerate(problem.graph.op_name)}
    of = np.array([place[name] for name in other.graph.op_name])
    kernel = plan.kernel[of]
    lowest = {int(k): int(np.flatnonzero(kernel == k)[0]) for k in kernel}
    return Plan(
        plan.graph_digest, plan.cluster_digest, ints([lowest[int(k)] for k in kernel]), plan.device[of], plan.rank[of]
    )


@settings(max_examples=400)
@given(st.data())
def test_expanded_and_judged_by_two_routes(data: st.DataObject) -> None:
    base = data.draw(problems(min_ops=3, max_ops=9, hosts=True))
    added = data.draw(additions(base))
    assume(added is not None)
    assert added is not None
    problem, slow = expand(base, added), expand_slowly(base, added)
    plan = data.draw(plans(problem, ties=False, sends=False).filter(lambda plan: not fuses_a_stay(problem, plan)))
    check(plan, base)
    line, judged = simulate(base, plan), judge(slow, same_plan_of(slow, problem, plan))
    assert line.step_ns == judged.step_ns
    assert line.peak_bytes.tolist() == judged.peak
    assert line.over_bytes == judged.over_bytes
    starts = dict(zip(slow.graph.op_name, judged.start, strict=True))
    assert dict(zip(problem.graph.op_name, line.start_ns.tolist(), strict=True)) == starts
    sends = {(slow.graph.tensor_name[t], src, dst, start) for t, src, dst, start, _ in judged.sends}
    assert named_sends(problem, line) == sends


def fuses_a_stay(problem: Problem, plan: Plan) -> bool:
    stays = [op for op, kind in enumerate(problem.graph.kind) if kind == "stay"]
    return any((plan.kernel == plan.kernel[op]).sum() > 1 for op in stays)


def named_sends(problem: Problem, line: Timeline) -> set[tuple[str, int, int, int]]:
    columns = (line.send_tensor, line.send_src, line.send_dst, line.send_start_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(problem.graph.tensor_name[t], src, dst, start) for t, src, dst, start in rows}


@settings(max_examples=100)
@given(st.data())
def test_settled_saved_and_bounded(data: st.DataObject) -> None:
    base = data.draw(problems(min_ops=3, max_ops=9))
    added = data.draw(additions(base))
    assume(added is not None)
    assert added is not None
    problem = expand(base, added)
    plan = data.draw(plans(problem, sends=False).filter(lambda plan: not fuses_a_stay(problem, plan)))
    line = simulate(base, plan)
    settled = settle(base, plan, line)
    check(settled, base)
    again = simulate(base, plan_from_json(plan_to_json(settled, base)))
    assert again.start_ns.tolist() == line.start_ns.tolist() and again.peak_bytes.tolist() == line.peak_bytes.tolist()
    fits = line.over_bytes == 0
    assert base.value(line) >= lower_bound(base, fusing=plan.fuses, fitting=fits, adding=True)
    sharing = narrowest(problem, plan)
    if keeps_to(base, plan, sharing):  # which it may not, as ops that are in no way connected may share a kernel
        assert base.value(line) >= lower_bound(base, fusing=sharing, fitting=fits, adding=True)
        assert int(line.peak_bytes.max()) >= peak_bound(base, fusing=sharing, adding=True)


def narrowest(problem: Problem, plan: Plan) -> Sharing:
    """What the plan's kernels need: all ops run alone but those that share one, as they are or as a copy."""
    assert problem.expansion is not None
    size = np.bincount(plan.kernel, minlength=problem.num_ops)[plan.kernel]
    alone = np.ones(problem.expansion.base.num_ops, bool)
    alone[problem.expansion.op[size > 1]] = False
    return Sharing(ints([]), ints([]), int(size.max()), alone)


def trained(seed: int) -> Graph:
    """A few layers forward, the same backward reading what they made, and weights that are overwritten at the end. Some
    have a batch norm, which overwrites its running statistics."""
    rng = np.random.default_rng(seed)
    g = GraphBuilder("trained")
    layers = int(rng.integers(2, 6))
    x, weights, acts = g.tensor(64, "input"), [], []
    for i in range(layers):
        weights.append(g.tensor(32, "weight", name=f"w{i}"))
        pre, out = g.tensor(100 + i, name=f"pre{i}"), g.tensor(90 + i, name=f"out{i}")
        g.op(f"mm{i}", "aten.mm.default", [x, weights[i]], [pre], flops=1000)
        if rng.integers(2):
            mean, made, kept = g.tensor(4, "state", name=f"mean{i}"), g.tensor(100 + i), g.tensor(4)
            updated = g.tensor(4, "state", name=f"mean{i}.new", alias_of=mean)
            g.op(f"norm{i}", "aten.native_batch_norm.default", [mean, pre], [updated, made, kept], flops=20)
            pre = made
        g.op(f"act{i}", "aten.gelu.default", [pre], [out], flops=10)
        acts.append((x, pre, out))
        x = out
    grad = g.tensor(90, name="loss")
    g.op("loss", "aten.sum.default", [x], [grad], flops=5)
    for i in reversed(range(layers)):
        came, pre, _ = acts[i]
        back, down, of_weight = g.tensor(95), g.tensor(97), g.tensor(32)
        g.op(f"act{i}.back", "aten.gelu_backward.default", [grad, pre], [back], flops=10)
        g.op(f"mm{i}.down", "aten.mm.default", [back, weights[i]], [down], flops=1000)
        g.op(f"mm{i}.weight", "aten.mm.default", [back, came], [of_weight], flops=1000)
        updated = g.tensor(32, "state", alias_of=weights[i])
        readers = [f"mm{i}", f"mm{i}.down"]
        g.op(f"up{i}", "optim.sgd", [weights[i], of_weight], [updated], flops=1, after=readers)
        grad = down
    return g.build()


def computed(problem: Problem, order: list[int], names: dict[str, str]) -> dict[int, object]:
    """What lies in every resident and in every output after the ops ran in that order, as nested words. What a batch
    norm makes depends on its running statistics no more than they do on each other."""
    graph = problem.graph
    held: dict[int, object] = {int(t): ("given", int(t)) for t in np.flatnonzero(graph.producer < 0)}
    for op in order:
        read = {int(graph.owner[t]): held[int(graph.owner[t])] for t in graph.reads_of(op)}
        over = {int(graph.owner[t]) for t in graph.makes_of(op) if graph.alias_of[t] >= 0}
        for t in graph.makes_of(op):
            root = int(graph.owner[t])
            if graph.kind[op] == "stay":
                held[root] = next(iter(read.values()))
            else:
                needed = [v for r, v in read.items() if "norm" not in graph.kind[op] or r not in over or r == root]
                held[root] = (names[graph.op_name[op]], graph.tensor_name[t].split(".again")[0], tuple(needed))
    return {t: held[t] for t in held if problem.resident[t] or problem.stays[t]}


@settings(max_examples=60)
@given(st.data(), st.integers(0, 10_000))
def test_what_runs_again_changes_no_result(data: st.DataObject, seed: int) -> None:
    base = price(trained(seed), pair())
    added = data.draw(additions(base, most=8))
    assert added is not None
    problem = expand(base, added)
    plan = data.draw(plans(problem, fuse=False, sends=False))
    line = simulate(base, plan)
    plain = computed(base, list(range(base.num_ops)), {name: name for name in base.graph.op_name})
    names = {name: name.split(".again")[0] for name in problem.graph.op_name}
    order = sorted(range(problem.num_ops), key=lambda op: (line.start_ns[op], line.end_ns[op], op))
    assert computed(problem, order, names) == plain


def test_running_again_lowers_the_peak() -> None:
    """Four activations of a chain and back: two are made again, and only as late as they are read."""
    base = price(trained(3), pair())
    device = np.zeros(base.num_ops, np.int64)
    plain = simulate(base, Plan.of(base, device))
    graph = base.graph
    op = {name: number for number, name in enumerate(graph.op_name)}
    out = {name: int(graph.makes_of(number)[0]) for name, number in op.items()}
    added = Additions(
        ints([op["act0"]]), ints([-1]), ints([-1]), ints([op["mm1.weight"]]), ints([out["act0"]]), ints([0])
    )
    problem = expand(base, added)
    line = simulate(base, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    assert line.peak_bytes[0] < plain.peak_bytes[0]
    assert line.step_ns == plain.step_ns + base.op_ns[op["act0"], 0]
    assert problem.graph.op_name.index("act0.again") == problem.graph.op_name.index("mm1.weight") - 1
    assert replace(problem, objective=base.objective).added is added
