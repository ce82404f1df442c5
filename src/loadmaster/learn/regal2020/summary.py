"""What a REGAL policy says of a problem, as plain data: its action op by op, what the action goes with, and its doubts.

The reviews of REGAL 2020 ask what was learned: the action is set against the bytes, fan-out and depth of the ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.cuts import device_order
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.learn.regal2020.actions import (
    BIAS,
    BIASES,
    BLOCKS,
    CHOICES,
    MEANS,
    ORDER,
    SENDS,
    SPREAD,
    STRENGTH,
    VARIANCES,
    WIDTH,
    WIDTHS,
    RegalAction,
    action_of,
    likeliest_choices,
    load_policy,
)
from loadmaster.learn.regal2020.said import (
    Agreement,
    Bin,
    Doubt,
    GraphChoice,
    Measures,
    PolicySummary,
    Reals,
    Relation,
    Said,
)
from loadmaster.papers.features import Features, device_class, features_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.learn.regal2020.networks import Outputs

UNSURE = 0.9  # of the entropy of an even chance; with two devices, a chance of 32 to 68 %
BINS = 8  # of about equally many ops
MOST_UNSURE = 20  # ops listed

_ORDER_WORDS = {
    "given": "the program's order",
    "memory": "the greedy memory order",
    "critical": "the critical-path order",
    "learned": "the order it learned",
}


def summarise_policy(problem: Problem, policy: str = "regal", plan: Plan | None = None) -> PolicySummary:
    """Runs the policy on the problem once. `policy`: the name of shipped weights, or a .safetensors file."""
    features = features_of(problem)
    outputs, known = _outputs(features, policy)
    picked = likeliest_choices(outputs.choices[0].cpu().numpy())
    measures = measures_of(problem, features)
    said = said_of(problem, features, action_of(outputs, features, picked, None))
    unsure = _unsure(problem, measures, said)
    order = device_order(problem).tolist()
    names = problem.cluster.device_names
    return PolicySummary(
        policy=policy,
        network=str(known["network"]),
        graph=problem.source.name,
        cluster=problem.cluster.name,
        objective=problem.objective.name,
        devices=tuple(names),
        first_to_last=tuple(names[device] for device in order),
        op_names=problem.graph.op_name,
        choices=_choices(outputs.choices[0].cpu().numpy().astype(np.float64), picked),
        measures=measures,
        said=said,
        relations=relations_of(measures, said),
        unsure_ops=len(unsure),
        unsure_bytes=_share(measures.weight_bytes, unsure),
        unsure=tuple(_doubt(problem, measures, said, op) for op in unsure[:MOST_UNSURE].tolist()),
        agreement=None if plan is None else agreement_of(problem, plan, said, measures),
    )


def _outputs(features: Features, policy: str) -> tuple[Outputs, dict[str, Any]]:
    network, known = load_policy(policy)
    import torch

    from loadmaster.learn.regal2020.networks import batch_of

    with torch.no_grad():
        outputs: Outputs = network(batch_of([features]))
    return outputs, known


def measures_of(problem: Problem, features: Features) -> Measures:
    graph, count = problem.graph, problem.num_ops
    start, before = graph.dependencies
    own = graph.own_bytes
    made, resident = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(made, rows_of(graph.make_start), own[graph.makes])
    np.add.at(resident, rows_of(graph.read_start), np.where(problem.resident[graph.reads], own[graph.reads], 0))
    return Measures(
        nbytes=ints(made + graph.workspace_bytes),
        resident_bytes=ints(resident),
        fan_out=ints(np.bincount(before, minlength=count)),
        depth=_depth(start, before),
        mirror=(features.mirror + 0.5) / count,
    )


def _depth(start: Ints, before: Ints) -> Ints:
    depth = [0] * (len(start) - 1)
    rows, values = start.tolist(), before.tolist()
    for op in range(len(depth)):
        depth[op] = max((depth[other] + 1 for other in values[rows[op] : rows[op + 1]]), default=0)
    return ints(depth)


def said_of(problem: Problem, features: Features, action: RegalAction) -> Said:
    shape = (problem.num_ops, problem.num_devices)
    chance = np.exp(action.chance.astype(np.float64)).reshape(shape)
    chance /= chance.sum(axis=1, keepdims=True)
    learned = _places(action.place)
    order = int(action.choices[2])
    variance = action.variance.reshape(shape)
    return Said(
        chance=chance,
        mean_level=ints(action.mean.reshape(shape)),
        variance_level=ints(variance),
        width_level=ints(action.width),
        bias_level=ints(action.bias),
        lean=_mean_device(problem, chance),
        pull=_mean_device(problem, MEANS[action.mean.reshape(shape)]),
        variance=VARIANCES[variance].mean(axis=1),
        place=learned if ORDER[order] == "learned" else features.orders[:, order].astype(np.float64),
        learned_place=learned,
        shift=learned - (np.arange(shape[0]) + 0.5) / shape[0],
        doubt=_entropy(chance),
    )


def _places(scores: NDArray[np.floating]) -> Reals:
    place = np.empty(len(scores))
    place[np.argsort(scores, kind="stable")] = (np.arange(len(scores)) + 0.5) / len(scores)
    return place


def _mean_device(problem: Problem, weight: Reals) -> Reals:
    """[ops] where the weights lie between the first device (0) and the last (1)."""
    scale = np.empty(problem.num_devices)
    scale[device_order(problem)] = np.linspace(0, 1, problem.num_devices)
    return np.asarray((weight * scale).sum(axis=1) / weight.sum(axis=1), np.float64)


def _entropy(chance: Reals) -> Reals:
    """[ops] entropy as a share of that of even chances."""
    logs = np.log(np.where(chance > 0, chance, 1.0))
    return np.asarray(-(chance * logs).sum(axis=1) / max(1e-9, np.log(chance.shape[1])), np.float64)


def relations_of(measures: Measures, said: Said) -> tuple[Relation, ...]:
    """Each action against each measure."""
    columns = {name: np.asarray(column, np.float64) for name, column in vars(measures).items()}
    actions = {"lean": said.lean, "shift": said.shift, "variance": said.variance, "doubt": said.doubt}
    return tuple(
        _relation(measure, action, columns[measure], actions[action]) for measure in columns for action in actions
    )


def _relation(measure: str, action: str, across: Reals, along: Reals) -> Relation:
    label = _bin_of(across)
    size = np.bincount(label)
    mean = np.bincount(label, along) / size
    constant = np.ptp(along) < 1e-12
    return Relation(
        measure,
        action,
        None if constant or np.ptp(across) == 0 else _rank_correlation(across, along),
        None if constant else float(size @ (mean - along.mean()) ** 2 / len(along) / along.var()),
        tuple(
            Bin(float(across[label == at].min()), float(across[label == at].max()), int(size[at]), float(mean[at]))
            for at in range(len(size))
        ),
    )


def _bin_of(column: Reals) -> Ints:
    """[ops] bins of about equally many ops; equal ops are never parted."""
    edges = np.unique(np.quantile(column, np.arange(1, BINS) / BINS, method="lower"))
    return np.unique(np.searchsorted(edges, column, side="left"), return_inverse=True)[1]


def _rank_correlation(one: Reals, two: Reals) -> float:
    return float(np.corrcoef(_ranks(one), _ranks(two))[0, 1])


def _ranks(column: Reals) -> Reals:
    """[ops] place of each in order, of equal ones the mean of theirs; importing scipy's takes half a second."""
    _, which, count = np.unique(column, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[which]


def _unsure(problem: Problem, measures: Measures, said: Said) -> Ints:
    """Ops that the policy is unsure of, the heaviest first."""
    ops = np.flatnonzero(said.doubt >= UNSURE)
    return ints(ops[np.lexsort((ops, -measures.weight_bytes[ops]))])


def _doubt(problem: Problem, measures: Measures, said: Said, op: int) -> Doubt:
    graph, device = problem.graph, int(said.chance[op].argmax())
    return Doubt(
        op=graph.op_name[op],
        scope=graph.scope[op],
        kind=graph.kind[op],
        nbytes=int(measures.weight_bytes[op]),
        depth=int(measures.depth[op]),
        device=problem.cluster.device_names[device],
        chance=float(said.chance[op, device]),
        doubt=float(said.doubt[op]),
    )


def agreement_of(problem: Problem, plan: Plan, said: Said, measures: Measures) -> Agreement:
    from scipy.optimize import linear_sum_assignment

    likeliest, devices = said.chance.argmax(axis=1), problem.num_devices
    together = np.zeros((devices, devices))
    np.add.at(together, (plan.device, likeliest), 1)
    alike = device_class(problem)
    together[alike[:, None] != alike[None, :]] = -problem.num_ops
    stands_for = linear_sum_assignment(together, maximize=True)[1]
    same = np.flatnonzero(stands_for[plan.device] == likeliest)
    return Agreement(len(same) / problem.num_ops, _share(measures.weight_bytes, same))


def _share(weight: Ints, ops: Ints) -> float:
    return float(weight[ops].sum() / max(1, weight.sum()))


def _choices(logits: Reals, picked: Ints) -> tuple[GraphChoice, ...]:
    found = []
    parts = np.split(logits, np.cumsum(CHOICES)[:-1])
    for (name, words), part, at in zip(_words(picked.tolist()), parts, picked.tolist(), strict=True):
        chances = np.exp(part - part.max())
        found.append(GraphChoice(name, words, float(chances[at] / chances.sum())))
    return tuple(found)


def _words(picked: list[int]) -> list[tuple[str, str]]:
    strength, spread, order, width, bias, blocks, sends = picked
    by, most = BLOCKS[blocks]
    shared = {"op": "none, each op has its own", "mirror": f"{most} blocks of the mirrored order"}
    return [
        ("strength", f"{STRENGTH[strength]:.0%} of the way from no preference to the chances"),
        ("spread", f"variance {VARIANCES[SPREAD[spread]]:.0%} of the most it can be"),
        ("order", f"priorities around {_ORDER_WORDS[ORDER[order]]}"),
        ("width", f"over {WIDTHS[WIDTH[width]]:.0%} of the range"),
        ("elite bias", f"{BIASES[BIAS[bias]]:.0%} of the genes from the better parent"),
        ("shared affinities", shared.get(by, f"{most} groups of ops joined by heavy tensors")),
        ("sends", "genes of their own" if SENDS[sends] else "as their tensors are made"),
    ]
