"""Problems to learn from: graphs of a corpus, varied, on drawn clusters; and good plans for them from long runs.

An example is named by (number of the graph, seed) alone, so that every process makes the same one from the corpus.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.cost import price
from loadmaster.files import graph_from_json, graph_to_json
from loadmaster.files.text import parse_json, read_lines
from loadmaster.files.writing import writing
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, digest, ints
from loadmaster.learn.variation import vary
from loadmaster.methods.default.auto import placement
from loadmaster.papers.features import Features, device_class, features_of
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.search.workers import OnRay, end_with_parent
from loadmaster.simulator import simulate, threads
from loadmaster.zoo.synthetic import KINDS, generate

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
FEWEST_OPS, MOST_OPS = 40, 1_600
KIND = re.compile(rb'"kind": ?("[^"]*")')  # of an op, in a line of a corpus
GENERATED_OPS = (60, 500)


class Key(NamedTuple):
    """Which example: a line of the corpus and a seed; seed 0 is the graph as it is, on the setting named.

    Attributes:
        line: of the corpus.
        seed: of the cluster, the objective and the variation.
        setting: "": drawn from the seed.
    """

    line: int
    seed: int
    setting: str = ""


# Settings with a name, for validation: cluster and objective.
SETTINGS: dict[str, tuple[str, str]] = {
    "regal": ("regal", "peak-memory"),
    "unlike": ("2xp100-pcie+2xk80", "peak-memory"),
    "bandwidth": ("placeto-2", "step-time"),
}


@dataclass(frozen=True, eq=False)
class Elite:
    """A good plan: where each op runs and when it is dispatched, and its value.

    Attributes:
        device: [ops] with equal devices numbered by where in the mirrored order their ops lie.
        turn: [ops] order of dispatch.
        value: of the objective.
    """

    device: Ints  # [ops]
    turn: Ints  # [ops]
    value: int


_lines: list[bytes] = []  # of the corpus; processes that are forked later have them too


def read_corpus(path: str | Path, training_share: float = 0.75, seed: int = 0) -> tuple[list[int], str]:
    """Reads the lines behind those already there; gives the numbers of those to learn from, and the digest of all.

    Training steps first, of the rest as many as the share leaves room for: inference graphs have little to gain.
    """
    lines = read_lines(path)
    first = add_lines(lines)
    training = [first + i for i, line in enumerate(lines) if b'"mode":"training"' in line[:4096].replace(b": ", b":")]
    rest = np.setdiff1d(np.arange(first, len(_lines)), training)
    most = len(rest) if not training else int(len(training) * (1 - training_share) / training_share)
    some = np.random.default_rng(seed).permutation(rest)[:most].tolist()
    return sorted([*training, *some]), digest(*lines)


def add_lines(lines: Sequence[bytes]) -> int:
    """Puts graphs behind those already there; the number of the first."""
    first = len(_lines)
    _lines.extend(lines)
    return first


def line_of(line: int) -> bytes:
    """A line that was read, as it stands."""
    return _lines[line]


def fold_of(line: int, folds: int) -> int:
    """Which fold a graph belongs to: graphs with the same kinds of ops are in the same one, as models of one family
    are."""
    return int(digest(*sorted(set(KIND.findall(line_of(line))))), 16) % folds


def add_generated(count: int) -> list[int]:
    """Numbers of `count` generated graphs put behind the lines already there, the kinds in turn."""
    each = -(-count // len(KINDS))
    made = [list(generate(kind, each, seed=1_000, ops=GENERATED_OPS)) for kind in KINDS] if count else []
    graphs = [graph for row in zip(*made, strict=True) for graph in row][:count]
    first = add_lines([json.dumps(graph_to_json(graph)).encode() for graph in graphs])
    return list(range(first, first + len(graphs)))


@contextmanager
def crew(processes: int | None, ray: str = "", begin: Callable[[], None] | None = None) -> Iterator[Executor]:
    """Processes forked from this one, which have its corpus and end with it; or the workers of a Ray cluster, which are
    given the corpus."""
    if ray:
        yield OnRay(ray, _take_lines, (digest(*_lines), tuple(_lines)))
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), begin or alone) as pool:
        try:
            yield pool
        except BaseException:  # such as Ctrl-C: nobody waits for what the workers still have to do
            for worker in list(pool._processes.values()):
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


_taken: list[str] = []  # the digest of the lines that a worker was given


def _take_lines(corpus: tuple[str, Sequence[bytes]]) -> None:
    if _taken != [corpus[0]]:
        forget_corpora()
        _lines.extend(corpus[1])
        _taken[:] = [corpus[0]]


def forget_corpora() -> None:
    """Empties what read_corpus has read, and all that was made of it."""
    _lines.clear()
    for made in (graph_of, make_problem, make_features):
        made.cache_clear()


@lru_cache(maxsize=256)
def graph_of(line: int) -> Graph:
    """The graph of a line that was read."""
    where = f"line {line + 1} of the corpus"
    return graph_from_json(parse_json(_lines[line], where), where)


@lru_cache(maxsize=64)
def make_problem(key: Key) -> Problem:
    """The problem of an example."""
    graph = graph_of(key.line)
    if key.setting:
        cluster_name, goal = SETTINGS[key.setting]
        return price(graph, cluster_name, objective=goal)
    rng = np.random.default_rng([key.line, key.seed])
    cluster, objective = draw_setting(rng)
    return price(vary(graph, rng), cluster, objective=objective)


@lru_cache(maxsize=64)
def make_features(key: Key) -> Features:
    """What a policy sees of it; half of the drawn ones without scopes."""
    features = features_of(make_problem(key))
    drops = not key.setting and np.random.default_rng([key.line, key.seed, 1]).random() < 0.5
    return features.without_scopes() if drops else features


def suits(key: Key) -> bool:
    return FEWEST_OPS <= make_problem(key).num_ops <= MOST_OPS


def draw_setting(rng: np.random.Generator) -> tuple[Cluster, str]:
    """Most often two equal devices and peak memory; else more devices, unlike ones, or step time over real links."""
    kind = rng.random()
    if kind < 0.6:
        return Cluster.preset("regal"), "peak-memory"
    count = int(rng.integers(2, 5))
    if kind < 0.75:
        return _drawn_cluster(rng, count, rng.random() < 0.5, free=True), "peak-memory"
    return _drawn_cluster(rng, count, rng.random() < 0.6, free=False), "step-time" if kind < 0.92 else "peak-memory"


def _drawn_cluster(rng: np.random.Generator, count: int, unlike: bool, free: bool) -> Cluster:
    speed = 2.0 ** rng.uniform(-2, 0, count) if unlike else np.ones(count)
    flops, traffic, launch = (
        1e13 * 2.0 ** rng.uniform(-1, 2),
        7e11 * 2.0 ** rng.uniform(-1, 2),
        int(rng.integers(1_000, 6_000)),
    )
    devices = tuple(
        Device(
            f"d{i}", "drawn", int(2**34 * 2.0 ** (rng.uniform(0, 2) if unlike else 1)), flops * s, traffic * s, launch
        )
        for i, s in enumerate(speed)
    )
    link = Link(None, 0) if free else Link(1e10 * 2.0 ** rng.uniform(-2, 4), int(rng.integers(2_000, 25_000)))
    bus = bool(rng.random() < 0.5)
    return all_linked(devices, link, bus, 1_000 if free and not unlike else None)


def all_linked(devices: tuple[Device, ...], link: Link, bus: bool, op_ns: int | None = None) -> Cluster:
    """The same link between any two devices; with a bus, all that a device sends goes over one wire."""
    count = len(devices)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    channel = np.full((count, count), -1, np.int64)
    for a, b in pairs:
        channel[a, b] = a if bus else a * count + b
    return Cluster("drawn", devices, dict.fromkeys(pairs, link), dense_channels(ints(channel)), op_ns)


def alone() -> None:
    """Keeps compiled loops of this process on one core; the other cores have processes of their own."""
    end_with_parent()
    os.environ["LOADMASTER_THREADS"] = "1"
    threads._pool.clear()  # a pool of threads does not live through a fork


def find_elite(key: Key, simulations: int) -> Elite | None:
    """The plan of a long run of the portfolio, which knows no policy."""
    if not suits(key):
        return None
    problem = make_problem(key)
    search = Search(problem, Budget(None, simulations), key.seed)
    plan = placement().optimize(search)
    line = simulate(problem, plan)
    return Elite(canonical(problem, make_features(key), plan.device), line.turn, search.best_score.value)


def canonical(problem: Problem, features: Features, device: Ints) -> Ints:
    """The placement with equal devices numbered in the order in which the mirrored program comes to them.

    A plan and its relabelling are the same plan; without this the labels to learn from contradict each other.
    """
    place = np.full(problem.num_devices, float(problem.num_ops))
    used = np.bincount(device, features.weight, problem.num_devices)
    total = np.bincount(device, features.weight * features.mirror, problem.num_devices)
    place[used > 0] = total[used > 0] / used[used > 0]
    label, name = device_class(problem), np.arange(problem.num_devices)
    for group in np.unique(label):
        members = np.flatnonzero(label == group)
        name[members[np.argsort(place[members], kind="stable")]] = members
    return ints(name[device])


def save_elites(path: Path, keys: Sequence[Key], elites: Sequence[Elite | None]) -> None:
    """One compressed file, put in place whole."""
    columns: dict[str, NDArray[np.generic]] = {
        "keys": np.array([[key.line, key.seed] for key in keys], np.int64).reshape(-1, 2),
        "size": np.array([0 if elite is None else len(elite.device) for elite in elites], np.int64),
        "value": np.array([0 if elite is None else elite.value for elite in elites], np.int64),
        "device": np.concatenate([np.zeros(0, np.uint8), *(e.device.astype(np.uint8) for e in elites if e)]),
        "turn": np.concatenate([np.zeros(0, np.uint16), *(e.turn.astype(np.uint16) for e in elites if e)]),
    }
    with writing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def load_elites(path: Path) -> dict[Key, Elite | None]:
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    edges = np.concatenate([[0], np.cumsum(columns["size"])])
    found: dict[Key, Elite | None] = {}
    for row, (line, seed) in enumerate(columns["keys"].tolist()):
        part = slice(edges[row], edges[row + 1])
        elite = Elite(ints(columns["device"][part]), ints(columns["turn"][part]), int(columns["value"][row]))
        found[Key(line, seed)] = elite if columns["size"][row] else None
    return found
