"""Why does a policy put a group of ops there? Features that moved the decision, tested by changing them.

A group's features of some kinds are replaced by those of a group that the policy puts elsewhere. Named are the fewest
kinds, one added after the other, that move the decision of the policy when they come from each of a few groups. Each
answer is then tested with the features of one more group. Attention weights and gradients are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.errors import UnknownName
from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.papers.features import features_of
from loadmaster.papers.grouped import KINDS, SHAPES, edges_of, groups_of
from loadmaster.papers.methods import Go, Hdp, Placeto, Regal, Rnn
from loadmaster.papers.mirhoseini2017 import Placer
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search

LEARNING = 200  # simulations that rnn and hdp learn from, since they have no weights to load
ASKED = 16  # groups, the longest first
DONORS = 3  # groups elsewhere whose features must move the decision, besides the one of the test

Change = tuple[frozenset[str], int]  # kinds of features, the group that they come from


@dataclass(frozen=True, eq=False)
class ReadPolicy:
    """A policy that has read a problem.

    Attributes:
        device: [groups] where it puts each, at its likeliest.
        kinds: of what it reads, a group's own first.
        scores: (group, changes) -> [changes, devices] log-chances of the group after each change.
    """

    label: Ints  # [ops]
    device: Ints
    kinds: tuple[str, ...]
    scores: Callable[[int, list[Change]], NDArray[np.floating]]


@dataclass(frozen=True)
class MovedDecision:
    """Why a group is where it is.

    Attributes:
        op: the longest of the group.
        ops: how many it has.
        because: kinds of features that moved the decision; none: no change of features did.
        instead: device that it moves to in the test.
        holds: whether the test moved it.
    """

    op: str
    ops: int
    device: str
    because: tuple[str, ...]
    instead: str
    holds: bool


def explain_policy(problem: Problem, name: str, seed: int = 0) -> dict[str, Any]:
    """What a policy decides on a problem and why; `tested` counts answers, `held` those that a change bore out."""
    if name not in _READERS:
        raise UnknownName.among("policy", name, list(_READERS))
    with torch.no_grad():
        read = _READERS[name](problem, seed)
        reasons = list(_reasons(problem, read, np.random.default_rng(seed)))
    told = {"policy": name, "graph": problem.graph.name, "devices": list(problem.cluster.device_names)}
    counts = np.bincount(read.device[read.label], minlength=problem.num_devices).tolist()
    held = sum(reason.holds for reason in reasons)
    return {**told, "ops": counts, "reasons": [asdict(each) for each in reasons], "tested": len(reasons), "held": held}


def _reasons(problem: Problem, read: ReadPolicy, rng: np.random.Generator) -> Iterator[MovedDecision]:
    time = np.bincount(read.label, problem.best_ns, len(read.device))
    there = np.bincount(read.label, minlength=len(read.device)) > 0
    for group in np.argsort(-time, kind="stable")[: ASKED + int((~there).sum())].tolist():
        elsewhere = rng.permutation(np.flatnonzero(there & (read.device != read.device[group])))
        if not there[group] or len(elsewhere) < 2:
            continue
        *donors, last = elsewhere[: DONORS + 1].tolist()
        because = fewest(read, group, donors)
        change = (frozenset(because), last)
        moved = int(read.scores(group, [change])[0].argmax()) if because else int(read.device[group])
        members = np.flatnonzero(read.label == group)
        names = problem.cluster.device_names
        yield MovedDecision(
            op=problem.graph.op_name[int(members[problem.best_ns[members].argmax()])],
            ops=len(members),
            device=names[int(read.device[group])],
            because=because,
            instead=names[moved],
            holds=moved != int(read.device[group]),
        )


def fewest(read: ReadPolicy, group: int, donors: list[int]) -> tuple[str, ...]:
    """Kinds of features, the one that moves most first, until those of every donor move the decision; of kinds that
    suffice, the first."""
    chosen: list[str] = []
    here = int(read.device[group])
    while len(chosen) < len(read.kinds):
        left = [kind for kind in read.kinds if kind not in chosen]
        scores = read.scores(group, [(frozenset((*chosen, kind)), donor) for kind in left for donor in donors])
        ahead = scores[:, here] - np.delete(scores, here, axis=1).max(axis=1)  # below 0: the decision moved
        worst = ahead.reshape(len(left), len(donors)).max(axis=1)
        enough = [kind for kind, margin in zip(left, worst, strict=True) if margin < 0]
        if enough:
            return (*chosen, enough[0])
        chosen.append(left[int(worst.argmin())])
    return ()


def _beside(edges: Bools, group: int) -> Ints:
    """Groups before and after it."""
    return ints(np.flatnonzero(edges[:, group] | edges[group]))


# ---------------------------------------------------------------- how each policy is read

_OPS = {"bytes and time": slice(0, 16), "readers and inputs": slice(16, 18), "critical path": slice(18, 21),
           "place in the program": slice(21, 42), "kind of work": slice(42, 46), "module": slice(46, 51)}  # fmt: skip
_PAIRS = {"time on each device": slice(0, 2), "place in the program": slice(2, None)}
NEIGHBOURS, PLACED, PLACE = "features of its neighbours", "devices of its neighbours", "place in the graph"
FIRST, ORDER = "where the first pass put everything", "order of the devices"
SEQUENCE, BEFORE, TURN = "groups beside it in the sequence", "devices given before", "turn in the sequence"


def _read_go(problem: Problem, seed: int) -> ReadPolicy:
    from loadmaster.papers import go2020
    from loadmaster.papers.go2020_network import GoDecisions, GoGraph, Noise, batch_of, read_problem

    graph = read_problem(problem, Go().groups)
    network, edges = go2020.load_network(Go(), seed), edges_of(problem, graph.label)
    tasks = ("placement", "schedule")
    batch = batch_of([graph], [tasks], [None])
    passes = go2020.draw(network, batch, torch.zeros(1), torch.Generator().manual_seed(seed)).passes
    device, devices = ints(passes[-1].made.device[0].numpy()), problem.num_devices

    def rows(made: GoDecisions, count: int) -> GoDecisions:
        return GoDecisions(*(each.repeat(count * devices, 1) for each in made))

    def changed(group: int, kinds: frozenset[str], donor: int) -> GoGraph:
        ops, pairs, beside = graph.ops.copy(), graph.pairs.copy(), _beside(edges, group)
        for kind in kinds & _OPS.keys():
            ops[group, _OPS[kind]] = graph.ops[donor, _OPS[kind]]
        for kind in kinds & _PAIRS.keys():
            pairs[group, :, _PAIRS[kind]] = graph.pairs[donor, :, _PAIRS[kind]]
        if NEIGHBOURS in kinds:
            ops[beside], pairs[beside] = graph.ops[donor], graph.pairs[donor]
        if ORDER not in kinds:
            return replace(graph, ops=ops, pairs=pairs)
        turn = swapped(group, donor)  # all that is said of one device is said of the other
        other = replace(graph, time=graph.time[:, turn], able=graph.able[:, turn], capacity=graph.capacity[turn])
        return replace(other, ops=ops, pairs=pairs[:, turn], devices=graph.devices[turn])

    def swapped(group: int, donor: int) -> Ints:
        """[devices] each, but those of the two groups in each other's place."""
        turn, (one, two) = np.arange(devices), device[[group, donor]]
        turn[[one, two]] = two, one
        return ints(turn)

    def scores(group: int, changes: list[Change]) -> NDArray[np.floating]:
        """Each change is a graph of the batch, with a row for each device, whose chance is asked for."""
        many = len(changes)
        last, wanted = rows(passes[-2].made, many), rows(passes[-1].made, many)
        wanted.device[:, group] = torch.arange(devices).repeat(many)
        for row, (kinds, donor) in enumerate(changes):
            block = last.device[row * devices : (row + 1) * devices]
            if FIRST in kinds:
                block[:] = torch.from_numpy(swapped(group, donor).copy())[block]
            if PLACED in kinds:
                block[:, [group, *_beside(edges, group).tolist()]] = passes[-2].made.device[0, donor]
        batch = batch_of([changed(group, *change) for change in changes], [tasks] * many, [None] * many)
        noise = Noise(torch.zeros(many * devices, network.shape.hidden), again=wanted)
        found = network.decide(batch, network.embed(batch), devices, last, noise)
        return np.asarray(found.chance[:, 1, group].view(many, devices).numpy())

    kinds = tuple(dict.fromkeys((*_OPS, *_PAIRS, NEIGHBOURS, PLACED, FIRST, ORDER)))
    return ReadPolicy(graph.label, device, kinds, scores)


def _read_regal(problem: Problem, seed: int, regal: Regal) -> ReadPolicy:
    """Op by op: the device whose affinity has the highest mean."""
    from loadmaster.papers import regal2020

    features, label = features_of(problem), ints(np.arange(problem.num_ops))
    graph, network = regal2020.read_problem(features), regal2020.load_network(regal, seed)
    edges = edges_of(problem, label)

    def score(op: int, kinds: frozenset[str], donor: int) -> NDArray[np.floating]:
        ops, pairs, beside = graph.ops.clone(), graph.pairs.clone(), torch.from_numpy(_beside(edges, op).copy())
        for kind in kinds & _OPS.keys():
            ops[op, _OPS[kind]] = graph.ops[donor, _OPS[kind]]
        for kind in kinds & _PAIRS.keys():
            pairs[op, :, _PAIRS[kind]] = graph.pairs[donor, :, _PAIRS[kind]]
        if NEIGHBOURS in kinds:
            ops[beside], pairs[beside] = graph.ops[donor], graph.pairs[donor]
        return np.asarray(network(replace(graph, ops=ops, pairs=pairs)).pairs[op, :, 0].numpy())

    def scores(op: int, changes: list[Change]) -> NDArray[np.floating]:
        return np.stack([score(op, *change) for change in changes])

    device = ints(network(graph).pairs[:, :, 0].argmax(dim=1).numpy())
    return ReadPolicy(label, device, tuple(dict.fromkeys((*_OPS, *_PAIRS, NEIGHBOURS))), scores)


def _read_placeto(problem: Problem, seed: int) -> ReadPolicy:
    from loadmaster.papers import placeto2019
    from loadmaster.papers.environment import Simulated

    placeto = Placeto(checkpoint="shipped" if problem.num_devices == 2 else "")
    label = groups_of(problem, placeto.groups, placeto.by)
    board = placeto2019.board_of(problem, label, placeto.traversal, np.random.default_rng(seed))
    network = placeto2019.load_network(placeto, problem.num_devices, seed)
    environment, start = Simulated(Search(problem, Budget(None, 2**31)), label), placeto2019.start_of(problem, label)
    episode = placeto2019.play(network, board, environment, start, 1, None)
    step, edges = np.argsort(board.order), edges_of(problem, label)
    own, all_groups = {"time": 0, "output bytes": 1}, {"groups already placed": 2, "start times of the others": 4}

    def score(group: int, kinds: frozenset[str], donor: int) -> NDArray[np.floating]:
        nodes, theirs = episode.nodes[0, step[group]].clone(), episode.nodes[0, step[donor]]
        beside = torch.from_numpy(_beside(edges, group).copy())
        for kind in kinds & own.keys():
            nodes[group, own[kind]] = theirs[donor, own[kind]]
        for kind in kinds & all_groups.keys():
            nodes[:, all_groups[kind]] = theirs[:, all_groups[kind]]
        if NEIGHBOURS in kinds:
            nodes[beside, :2] = theirs[donor, :2]
        if PLACED in kinds:
            nodes[beside, 5:] = nn.functional.one_hot(episode.actions[0, step[donor]], problem.num_devices).float()
        related, wires = board.related.clone(), board.edges.clone()
        if PLACE in kinds:
            related[:, group] = board.related[:, donor]
            wires[group], wires[:, group] = board.edges[donor], board.edges[:, donor]
        changed = replace(board, related=related, edges=wires)
        return np.asarray(network(changed, nodes[None], torch.tensor([group]))[0].numpy())

    def scores(group: int, changes: list[Change]) -> NDArray[np.floating]:
        return np.stack([score(group, *change) for change in changes])

    device = ints(episode.actions[0].numpy()[step])
    return ReadPolicy(label, device, (*own, *all_groups, PLACE, NEIGHBOURS, PLACED), scores)


def _read_rnn(problem: Problem, seed: int) -> ReadPolicy:
    from loadmaster.papers import mirhoseini2017

    search = Search(problem, Budget(None, LEARNING), seed=seed)
    with torch.enable_grad():
        policy, label = mirhoseini2017.learn(Rnn(), search)
    return _read_placer(label, policy.placer, policy.vectors, policy.able[None])


def _read_hdp(problem: Problem, seed: int) -> ReadPolicy:
    from loadmaster.papers import hdp2018

    search = Search(problem, Budget(None, LEARNING), seed=seed)
    with torch.enable_grad():
        policy = hdp2018.learn(Hdp(), search)
    group = policy.grouping(torch.zeros(problem.num_ops, policy.groups)).argmax(dim=1)
    return _read_placer(ints(group.numpy()), policy.placer, *policy.groups_read(group[None]))


def _read_placer(label: Ints, placer: Placer, vectors: Tensor, able: Tensor) -> ReadPolicy:
    """The recurrent placer of Mirhoseini 2017 and HDP 2018 over the vectors of groups [1, groups, width]."""
    groups, devices = able.shape[1:]
    device = placer.draw(vectors, able, torch.zeros(1, groups, devices))
    ends = np.cumsum([0, KINDS, SHAPES, groups, groups]).tolist()
    names = ("kinds of its ops", "output shapes", "groups it reads", "groups that read it")
    columns = {name: slice(*ends[i : i + 2]) for i, name in enumerate(names)}

    def scores(group: int, changes: list[Change]) -> NDArray[np.floating]:
        changed, before = vectors.repeat(len(changes), 1, 1), device.repeat(len(changes), 1)
        for row, (kinds, donor) in enumerate(changes):
            for kind in kinds & columns.keys():
                changed[row, group, columns[kind]] = vectors[0, donor, columns[kind]]
            if SEQUENCE in kinds:  # up to two places away: what the network has just read and is about to
                for step in (-2, -1, 1, 2):
                    if 0 <= group + step < groups and 0 <= donor + step < groups:
                        changed[row, group + step] = vectors[0, donor + step]
            if BEFORE in kinds:
                before[row, :group] = device[0, donor]
            if TURN in kinds:  # both change places
                changed[row, [group, donor]] = changed[row, [donor, group]]
        asked = [donor if TURN in kinds else group for kinds, donor in changes]
        return np.asarray(placer.log_chances(changed, able, before)[range(len(changes)), asked].numpy())

    return ReadPolicy(label, ints(device[0].numpy()), (*names, SEQUENCE, BEFORE, TURN), scores)


_READERS: dict[str, Callable[[Problem, int], ReadPolicy]] = {
    "regal": partial(_read_regal, regal=Regal()),
    "gas": partial(_read_regal, regal=Regal(network="sequence")),
    "go": _read_go,
    "placeto": _read_placeto,
    "hdp": _read_hdp,
    "rnn": _read_rnn,
}
