"""Writes afresh what policies are shown of problems: python -m tests.golden.inputs

Networks were trained on these numbers, so that one that changes unawares spoils weights that are shipped. Of each array
its shape and four sums are kept: of the numbers, and of the numbers by weights that differ from place to place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster import GraphBuilder
from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn.decoding import critical_ranks
from loadmaster.learn.features import features_of, group_features
from loadmaster.learn.placeto2019.board import board_of
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.simulator import first_come, simulate
from tests.golden.plans import PROBLEMS, apart, drawing, held, layers, wired, zero

FILE = Path(__file__).parent / "inputs.json"


def features(problem: Problem) -> Any:
    return features_of(problem)


def grouped(problem: Problem) -> Any:
    return group_features(features_of(problem), groups(problem))


def board(problem: Problem) -> Any:
    return board_of(problem, groups(problem))


def published(problem: Problem) -> Any:
    from loadmaster.learn.recurrent.inputs import loads_of, published_vectors

    return published_vectors(problem, groups(problem), 16), loads_of(problem, groups(problem))


def full(problem: Problem) -> Any:
    from loadmaster.learn.recurrent.inputs import full_of

    return full_of(problem, groups(problem), features_of(problem))


def go(problem: Problem) -> Any:
    from loadmaster.learn.go2020.input import go_input

    return go_input(problem, 8)


def seen(problem: Problem) -> Any:
    """Of a plan whose ops are dealt out in turn."""
    from loadmaster.learn.go2020.timeline import seen_of

    device = ints(problem.able.argmax(axis=1))
    device = ints(np.where(problem.able[:, 1], np.arange(problem.num_ops) // 3 % 2, device)[problem.leader])
    line = simulate(problem, first_come(problem, device))
    return seen_of(problem, groups(problem), device, line), critical_ranks(problem, device[None])


def units(problem: Problem) -> Any:
    from loadmaster.learn.hdp2018.policy import units_of

    return units_of(problem, groups(problem))


def measured(problem: Problem) -> Any:
    from loadmaster.learn.regal2020.summary import measures_of

    return measures_of(problem, features_of(problem))


VIEWS: dict[str, Callable[[Problem], Any]] = {
    view.__name__: view for view in (features, grouped, board, published, full, go, seen, units, measured)
}


def few() -> Problem:
    """Three ops on two devices."""
    return price(layers(1, 1, 4), "2xp100-pcie")


def lopsided() -> Problem:
    """Four devices of two kinds with unlike memories, whose links differ by their direction; ops of given times that
    need workspace, are colocated, write in place, wait without reading, or have nobody that reads what they make."""
    build, rng = GraphBuilder("lopsided"), np.random.default_rng(13)
    weights = [build.tensor(int(size), "weight") for size in rng.integers(100, 900, 3)]
    made = [build.tensor(70, "input")]
    for at in range(22):
        times: list[int | None] = [int(time) for time in rng.integers(5, 99, 2) for _ in range(2)]
        if at % 7 == 3:
            times[2:] = [None, None]
        reads = sorted({*rng.choice(made[-5:], min(len(made), 2), replace=False).tolist(), weights[at % 3]})
        alias = {"alias_of": reads[0]} if at % 8 == 6 and reads[0] > 3 else {}
        role = "output" if at % 10 == 9 else "activation"
        new = build.tensor(int(rng.integers(5, 300)), role, shape=(5, at + 1), dtype="float32", **alias)
        more = {"colocate": at // 9} if at % 9 > 6 else {"after": [f"op{at - 3}"]} if at % 6 == 5 else {}
        kind = ("aten.mm.default", "aten.relu.default", "aten.sum.dim_IntList", "any")[at % 4]
        scope = "" if at % 5 == 0 else f"part.{at // 6}.{at % 2}"
        build.op(f"op{at}", kind, reads, [new], time_ns=times, scope=scope, workspace_bytes=at % 4 * 30, **more)
        made = [*(one for one in made if one not in alias.values()), *([new] if at % 4 else [])]
    updated = build.tensor(900, "weight", alias_of=weights[1])
    build.op("update", "optim.sgd", [weights[1], made[-1]], [updated], time_ns=[9, 9, 20, 20], scope="update")
    cluster = wired((2e9, 2e9, 1e9, 1e9), lambda one, two: True, lambda one, two: one)
    links = {(a, b): Link(4e9 if a < b else 2e9, 3 + 2 * a + (b == 3)) for a, b in cluster.links}
    memory = (2_000, 2_000, 3_000, 900)
    devices = tuple(replace(d, memory_bytes=memory[at], kind="ab"[at // 2]) for at, d in enumerate(cluster.devices))
    return price(build.build(), replace(cluster, devices=devices, links=links))


def least() -> Problem:
    """As little as there can be of everything: memory of a byte, ops of a nanosecond or none, tensors of a byte or
    none, one op that has nothing to do with the others."""
    build = GraphBuilder("least")
    weight, one, none = build.tensor(1, "weight"), build.tensor(1), build.tensor(0)
    build.op("first", "any", [weight], [one, none], time_ns=[1, 0])
    build.op("alone", "any", [], [], time_ns=[0, 1])
    build.op("last", "any", [one, none], [build.tensor(1, "output")], time_ns=[0, 0])
    cluster = wired((1e9, 1e9), lambda one, two: True, lambda one, two: one)
    devices = tuple(replace(device, memory_bytes=1, launch_ns=0) for device in cluster.devices)
    return price(build.build(), replace(cluster, devices=devices, links=dict.fromkeys(cluster.links, Link(1e12, 0))))


ALL = PROBLEMS | {problem.__name__: problem for problem in (zero, few, lopsided, least, held, apart, drawing)}


def groups(problem: Problem) -> Any:
    return group_ops(problem, 8, "scope")


def arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """All arrays and tensors in it, by a path."""
    if is_dataclass(value) or isinstance(value, tuple):
        names = [field.name for field in fields(value)] if is_dataclass(value) else list(getattr(value, "_fields", ()))
        parts = [getattr(value, each) for each in names] if names else list(value)
        for each, part in zip(names or map(str, range(len(parts))), parts, strict=True):
            yield from arrays(f"{name}.{each}", part)
    elif hasattr(value, "detach"):
        yield name, value.detach().numpy()
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield name, value


def told(view: str, problem: str) -> dict[str, list[float]]:
    found = {}
    for name, array in arrays(view, VIEWS[view](ALL[problem]())):
        found[name] = sums_of(array)
    return found


def sums_of(array: np.ndarray) -> list[float]:
    """Its shape and four sums. What is as good as infinite counts as a million: beside it nothing else would show."""
    flat = array.astype(np.float64).reshape(-1)
    flat = np.nan_to_num(np.where(np.abs(flat) > 1e100, np.copysign(np.inf, flat), flat), posinf=1e6, neginf=-1e6)
    place = np.arange(1, len(flat) + 1)
    sums = [flat.sum(), (flat * np.cos(place)).sum(), (flat * np.sin(3 * place)).sum(), (flat**2).sum()]
    return [*map(float, array.shape), *(float(f"{each:.6g}") for each in sums)]


def main() -> None:
    rows = []
    for view in VIEWS:
        for problem in ALL:
            inner = ",\n".join(f'  "{name}": {json.dumps(sums)}' for name, sums in told(view, problem).items())
            rows.append(f'"{view} {problem}": {{\n{inner}\n}}')
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
