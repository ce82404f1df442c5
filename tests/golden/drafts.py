"""Writes afresh what plans that are short of memory are made of: python -m tests.golden.drafts [SCENE ...]

Drafts of small problems, what it takes to have each of their tensors again at each place, what is chosen and done about
them, and what lives on a host; then the same after changes were taken back, which must leave nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import astuple
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget, price, solve
from loadmaster.graph.columns import Ints, ints
from loadmaster.optimizers.memory import checkpoints, closures, cutting, drafted, lodging, passing, trips
from loadmaster.optimizers.memory.changes import make_again, reuse
from loadmaster.optimizers.memory.closures import closure_of
from loadmaster.optimizers.memory.delaying import delayed
from loadmaster.optimizers.memory.draft import Draft, draft_of
from loadmaster.optimizers.memory.dropping import Dropping
from loadmaster.optimizers.memory.inlining import inlined
from loadmaster.optimizers.memory.recompute import Recompute, apart
from loadmaster.optimizers.memory.trips import Trip
from loadmaster.optimizers.simple import legal
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search
from tests.golden.bounds import brief
from tests.golden.plans import layers
from tests.golden.scenes import Scenes, Told, checksum
from tests.golden.steps import assorted, plan_told

scene = Scenes(Path(__file__).with_suffix(".json"))


@cache
def planned() -> dict[str, tuple[Problem, Plan]]:
    """Each problem on one device, and fused."""
    found = {}
    for name, problem in assorted():
        found[f"{name} plain"] = problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64))
        found[f"{name} fused"] = problem, solve(problem, "greedy-fusion", Budget(None, 4)).plan
    for seed in range(3):  # given times, some of which are under a launch
        graph = layers(1 + seed, 3, 50 + seed, given=2, training=True, fusable=True)
        problem = price(graph, brief().cluster)
        found[f"brief {seed} plain"] = problem, Plan.of(problem, legal(problem, np.zeros(problem.num_ops, np.int64)))
        found[f"brief {seed}"] = problem, solve(problem, "greedy-fusion", Budget(None, 4)).plan
    return found


def drafts() -> Iterator[tuple[str, Draft]]:
    for name, (problem, plan) in planned().items():
        yield name, draft_of(problem, plan)


def state(draft: Draft) -> list[Any]:
    """All that changes change."""
    columns = (draft.memory, draft.members, draft.kernel_launch)
    rates = (draft.kernel_compute, draft.kernel_traffic, draft.kernel_fixed)
    return [
        [(v.tensor, v.made, v.job, sorted(v.uses), v.inner, v.cost_ns) for v in draft.versions],
        [astuple(job) for job in draft.jobs],
        sorted(draft.source.items()),
        sorted((tensor, sorted(uses)) for tensor, uses in draft.given.items()),
        sorted(draft.lodged),
        sorted((job, tuple(trip)) for job, trip in draft.trips.items()),
        sorted((at, [(each.start, each.stop) for each in some]) for at, some in draft.chains.items() if some),
        [column.tolist() for column in columns],
        [[round(float(each), 3) for each in column] for column in rates],
        draft.extra_ns,
    ]


def curve(draft: Draft) -> list[float]:
    return [float(draft.memory.sum()), checksum(draft.memory.tolist())]


@scene
def plans_as_kernels_in_a_row() -> Told:
    found: Told = {}
    for name, draft in drafts():
        facts = [
            draft.at,
            draft.open.tolist(),
            draft.points.tolist(),
            draft.rows.tolist(),
            draft.updated_at,
            draft.reads,
        ]
        facts += [
            draft.makes,
            draft.launch,
            draft.compute,
            draft.fixed,
            draft.begins.tolist(),
            sorted(draft.overwritten),
        ]
        found[name] = [*curve(draft), checksum(state(draft)), checksum(facts)]
        places = range(0, len(draft.heads) + 1, 2)
        some = [draft.there(tensor, at) for tensor, at in product(draft.of, places)]
        some += [draft.latest(tensor, at) for tensor, at in product(draft.of, places)]
        some += [draft.droppable(number, at) for number, at in product(range(len(draft.versions)), places[:-1])]
        found[f"{name} there"] = [float(sum(map(bool, some))), checksum(some)]
        plans = (apart(draft.problem, draft.plan, int(head)) for head in np.unique(draft.plan.kernel)[::4])
        found[f"{name} apart"] = [checksum([plan_told(plan) for plan in plans])]
        found[f"{name} early"] = plan_told(lodging.early_updates(draft.problem, draft.plan))
        search = Search(draft.problem, Budget(None, 9))
        found[f"{name} late"] = plan_told(delayed(search, draft.plan))
        found[f"{name} inlined"] = plan_told(inlined(draft.problem, draft.plan))
    return found


def allowances(draft: Draft) -> tuple[Any, ...]:
    every = np.ones(draft.problem.num_ops, bool)
    return every & ~draft.heavy, ~every, every


@scene
def what_it_takes_to_have_a_tensor_again() -> Told:
    found: Told = {}
    limits = {"all": {}, "few": {"MOST_AGAIN": 2}, "flat": {"MOST_DEPTH": 2}, "lone": {"MOST_MEMBERS": 3}}
    for name, draft in drafts():
        for which, given in limits.items():
            rows = []
            with mock.patch.multiple(closures, **given) if given else mock.MagicMock():
                for number, join, allowed in product(range(len(draft.versions)), (True, False), allowances(draft)):
                    version = draft.versions[number]
                    for at in range(version.made + 1, len(draft.heads), 3):
                        rows.append(closure_of(draft, (version.tensor,), at, allowed, join))
            some = [row for row in rows if row is not None]
            found[f"{name} {which}"] = [float(len(some)), float(sum(each.cost_ns for each in some)), checksum(rows)]
    return found


@scene
def copies_and_what_they_hold() -> Told:
    """Each tensor made again for its later readers, four in a row, and taken back."""
    found: Told = {}
    for name, draft in drafts():
        before, rows = state(draft), list[Any]()
        for join, step in ((False, 1), (True, 2)):
            undo = []
            for number in range(0, len(draft.versions), step):
                version = draft.versions[number]
                uses = sorted({at for at, _ in version.uses if at > version.made + 1})
                if version.job >= 0 or not uses or not draft.open[uses[0]]:
                    continue
                closure = closure_of(draft, (version.tensor,), uses[0], allowances(draft)[2], join)
                if closure is not None and closure.ops:
                    later = [use for use in version.uses if use[0] >= uses[0]]
                    later = later if not join else [use for use in later if use[0] == uses[0]]
                    undo.append(make_again(draft, [(number, later)], closure, uses[0]))
                    rows.append((*curve(draft), draft.extra_ns))
                if len(undo) == 4:
                    chains = [(at, passing.in_turn(draft, at)) for at in sorted(draft.chains)]
                    rows.append((checksum(state(draft)), checksum(chains), plan_told(drafted.plan_of(draft))))
                    copies = [n for n, v in enumerate(draft.versions) if v.job >= 0 and v.uses]
                    for copy in copies[::2]:
                        old = draft.latest(draft.versions[copy].tensor, draft.versions[copy].made)
                        undo.append(reuse(draft, copy, old, list(draft.versions[copy].uses)) if old >= 0 else list)
                        rows.append(curve(draft))
                    while undo:
                        undo.pop()()
            while undo:
                undo.pop()()
            assert state(draft) == before, "what is taken back is as it was"
        found[name] = [float(len(rows)), checksum(rows)]
    return found


def lowered(draft: Draft, share: float) -> Ints:
    high, low = draft.memory.max(axis=1), draft.memory.min(axis=1)
    return ints(low + (high - low) * share)


@scene
def what_to_do_about_a_tensor() -> Told:
    found: Told = {}
    for name, draft in drafts():
        for lead in (inf, 2.0):
            draft.lead = lead
            limits = lowered(draft, 0.6)
            dropping = Dropping(Recompute(), draft, limits, set(), None, 0.0)
            device, at = (
                int(each)
                for each in np.unravel_index(int((draft.memory - limits[:, None]).argmax()), draft.memory.shape)
            )
            dropping._measure(device)
            rows: list[Any] = []
            for place in (at, at // 2, (at + len(draft.heads)) // 2):
                mine = [n for n in range(len(draft.versions)) if dropping._may(n, place)]
                rows += [(n, dropping.choice(n, place)) for n in mine]
                kept = [t for t in dropping.lodgers if dropping._may_lodge(t, place)]
                rows += [(t, dropping._lodging_worth(t), dropping._lodged(t, place)) for t in kept]
            worth = sum(row[-1].worth for row in rows if row[-1] is not None)
            found[f"{name} {lead}"] = [float(len(rows)), worth, checksum(rows)]
    return found


@scene
def passes_over_drafts() -> Told:
    found: Told = {}
    settings = (Recompute(), Recompute(offload=False), Recompute(again=False), Recompute(residents=False))
    ways = ((settings[0], False, inf, 0.0), (settings[0], True, inf, 0.3), (settings[0], True, 2.0, 0.0))
    ways += tuple((each, False, inf, 0.0) for each in settings[1:])
    for (name, (problem, plan)), (number, (given, follows, lead, noise)) in product(planned().items(), enumerate(ways)):
        draft = draft_of(problem, plan)
        draft.follows, draft.lead = follows, lead
        rng = np.random.default_rng(number) if noise else None
        dropping = Dropping(given, draft, lowered(draft, 0.75 - 0.05 * number), set(), rng, noise)
        dropped = dropping.run()
        told = [checksum(sorted(dropped)), float(dropping.stuck_at), *curve(draft), checksum(state(draft))]
        found[f"{name} {number}"] = [*told, *plan_told(drafted.plan_of(draft)), float(draft.extra_ns)]
        found[f"{name} {number} homes"] = [checksum(lodging.heaviest(draft)), checksum(sorted(dropping.sent))]
    return found


@scene
def what_lives_on_a_host() -> Told:
    found: Told = {}
    for name, draft in drafts():
        hosts = trips.hosts_of(draft.problem.cluster)
        for follows, share in product((False, True), (1, 8, 80)):
            draft.follows, draft.lead = follows, inf if share > 1 else 2.5
            with mock.patch.object(lodging, "SHARE", share):
                some, before, rows = (
                    lodging.lodgers(draft, hosts, draft.problem.memory_bytes),
                    state(draft),
                    list[Any](),
                )
            undo = []
            for tensor in some[:12]:
                host = hosts[draft.home_of(tensor)]
                stay = lodging.lodging_of(draft, tensor, host)
                undo.append(lodging.lodge(draft, tensor, host, stay))
                rows.append((tensor, stay, lodging.least_cost_ns(draft, tensor, host), curve(draft)))
            rows.append((checksum(state(draft)), lodging.heaviest(draft), plan_told(drafted.plan_of(draft))))
            while undo:
                undo.pop()()
            assert state(draft) == before
            found[f"{name} {follows} {share}"] = [float(len(some)), checksum(rows)]
        if hosts:
            for tensor in some[:12]:
                lodging.lodge(draft, tensor, hosts[draft.home_of(tensor)], lodging.lodging_of(draft, tensor, hosts[0]))
            lodging.set_out_early(draft, draft.problem.memory_bytes)
            rows = [(checksum(state(draft)), curve(draft))]
            for tensor in lodging.heaviest(draft):
                lodging.bring_home(draft, tensor, float(draft.memory.max()))
                rows.append((checksum(state(draft)), curve(draft)))
            found[f"{name} home"] = [float(len(draft.lodged)), checksum(rows)]
    return found


@scene
def parts_that_run_again() -> Told:
    """Checkpoints, and minimum cuts at every turn."""
    found: Told = {}
    for name, (problem, plan) in planned().items():
        draft = draft_of(problem, plan)
        turn = cutting.turning_point(draft)
        edges = [checkpoints.narrow_cuts(draft, turn, count).tolist() for count in range(1, 7)]
        segments = [
            rule._segments(draft, turn) for rule in (checkpoints.SqrtCheckpointing, checkpoints.LayerCheckpointing)
        ]
        cuts = [sorted(cutting.saved_by_cut(draft, at)) for at in range(0, len(draft.heads), 5)]
        with mock.patch.object(cutting, "MOST_FLOW", 1 << 9):
            cuts.append(sorted(cutting.saved_by_cut(draft, turn)))
        found[name] = [float(turn), checksum(edges), checksum([each.tolist() for each in segments]), checksum(cuts)]
        plans = [checkpoints.checkpointed(draft_of(problem, plan), turn, segment) for segment in segments]
        cutting.make_light_again(draft, cutting.saved_by_cut(draft, turn))
        plans.append(drafted.plan_of(draft))
        found[f"{name} plans"] = [number for each in plans for number in plan_told(each)] + [*curve(draft)]
    return found


@scene
def journeys() -> Told:
    """Of random trips to a host and back: when they leave, set out again and are waited for."""
    found: Told = {}
    _, draft = next(drafts())
    for seed in range(20):
        rng = np.random.default_rng(seed)
        end = int(draft.end_ns[-1])
        some = [
            Trip(
                int(rng.integers(end)), int(rng.integers(end // 4)), int(rng.integers(end)), int(rng.integers(end // 4))
            )
            for _ in range(int(rng.integers(1, 7)))
        ]
        some = [trip._replace(due_ns=trips.NEVER, back_ns=0) if rng.random() < 0.2 else trip for trip in some]
        row: list[int] = trips.out_ends(some)
        for lead in (inf, 1.0, 1.7):
            draft.lead = lead
            row += [*trips.back_starts(some, lead), trips.waited_ns(some, lead), *trips.begin_positions(draft, some)]
        found[f"{seed}"] = [float(each) for each in row]
    return found


if __name__ == "__main__":
    scene.write(sys.argv[1:])
