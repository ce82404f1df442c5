"""Problems of step time for GO to learn from, and good plans for them from classical runs.

An example is named by (line of the corpus, seed) alone, so that every process makes the same one; line -1 is a graph
drawn from the seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from loadmaster.baselines.expert.expert import Expert
from loadmaster.baselines.lists.schedulers import Etf, Heft
from loadmaster.baselines.simple import OneDevice
from loadmaster.cost import price
from loadmaster.files.text import read_lines
from loadmaster.files.writing import writing
from loadmaster.graph.columns import Ints, digest, ints, rows_of
from loadmaster.graph.order import longest_path_to
from loadmaster.learn.examples import add_lines, forget_corpora, graph_of
from loadmaster.learn.go2020.candidates import candidates_of
from loadmaster.learn.go2020.drawing import FEWEST_OPS, draw_cluster, draw_graph, vary
from loadmaster.learn.go2020.input import GoInput, go_input
from loadmaster.methods.annealing.anneal import improve
from loadmaster.methods.default.auto import placement
from loadmaster.papers.decoding import critical_ranks
from loadmaster.papers.features import features_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search
from loadmaster.simulator import simulate

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
MOST_OPS = 3_000
LEAST_PARALLEL = 1.2  # work ÷ critical path, below which step time has little to gain
DRAWN = -1  # the line of graphs that are not of the corpus
BASELINES = ("heft", "m-etf", "expert")
UNDOING = 240  # simulations that look for changes of a search without which the plan is as good
STORED = {
    "slot": np.uint8,
    "candidate_value": np.int64,
    "plain": np.int64,
    "candidate": np.uint8,
    "device": np.uint8,
    "turn": np.uint16,
    "reached": np.int64,
}

# The families of the fourteen workloads that GO is measured on: recurrent language models, translation, Transformer-XL
# (XLNet is one), Inception (GoogLeNet is the first), AmoebaNet and other searched cells, WaveNet.
HELD_OUT = re.compile(
    r"rnn|lstm|(?<![a-z])gru(?![a-z])|nmt|marian|transfo-?xl|transformer-?_?xl|xlnet|inception|googlenet|amoeba|nasnet"
    r"|pnas|wavenet",
    re.IGNORECASE,
)


class GoKey(NamedTuple):
    """Which example: a line of the corpus, or DRAWN, and a seed."""

    line: int
    seed: int


@dataclass(frozen=True, eq=False)
class GoElite:
    """What every candidate is worth, and what a search that takes only gains made of some; values of plain methods.

    Attributes:
        slot: [candidates] which rule each is.
        candidate_value: [candidates] what each is worth under the critical-path order: see `worth`.
        plain: [BASELINES] what plain methods are worth.
        candidate: [labels] which candidate the search started from.
        turn: [labels, ops] the order of dispatch.
        reached: [labels] what the search reached.
    """

    slot: Ints  # [candidates]
    candidate_value: Ints  # [candidates]
    plain: Ints  # [BASELINES]
    candidate: Ints  # [labels]
    device: Ints  # [labels, ops]
    turn: Ints  # [labels, ops]
    reached: Ints  # [labels]

    @property
    def value(self) -> int:
        return int(min(self.reached.min(initial=2**62), self.candidate_value.min()))


def read_graphs(path: str | Path) -> tuple[list[int], str]:
    """Reads a corpus behind those already there; the numbers of the lines that may be learned from, and the digest."""
    lines = read_lines(path)
    first = add_lines(lines)
    return [first + i for i, line in enumerate(lines) if not is_held_out(line)], digest(*lines)


def forget_graphs() -> None:
    """Empties what read_graphs has read, and all that was made of it."""
    forget_corpora()
    make_problem.cache_clear()


def is_held_out(line: bytes) -> bool:
    """Whether the name, the family or the model of a graph is of a family that must not be learned from."""
    head = line[:4096].decode("utf-8", "replace")
    named = re.findall(r'"(?:name|family|model)"\s*:\s*"([^"]*)"', head.partition('"ops"')[0])
    return any(HELD_OUT.search(name) for name in named)


@lru_cache(maxsize=1024)
def make_problem(key: GoKey) -> Problem:
    """The problem of an example: the graph, varied, on a drawn cluster; memory binds in about a third of them."""
    rng = np.random.default_rng([key.line + 1, key.seed])
    graph = draw_graph(rng) if key.line == DRAWN else vary(graph_of(key.line), rng)
    problem = price(graph, draw_cluster(rng))
    return _tighten(problem, float(rng.uniform(1.2, 2.2))) if rng.random() < 0.4 else problem


def _tighten(problem: Problem, spare: float) -> Problem:
    """Memory for `spare` times an equal share of what one device would hold at its peak."""
    plan = OneDevice().optimize(Search(problem, Budget(None, 1)))
    peak = int(simulate(problem, plan).peak_bytes.sum())
    cluster = problem.cluster.with_memory(max(1, int(peak * spare / problem.num_devices)))
    return replace(problem, cluster=cluster, memory_bytes=cluster.memory_bytes)


def suits(key: GoKey) -> bool:
    """Neither too small nor too large; and there is something to gain, but for one in four."""
    problem = make_problem(key)
    if not FEWEST_OPS <= problem.num_ops <= MOST_OPS:
        return False
    return parallelism(problem) > LEAST_PARALLEL or key.seed % 4 == 0


def parallelism(problem: Problem) -> float:
    """Work ÷ critical path, every op on its fastest device and sends for nothing."""
    path = longest_path_to(*problem.graph.dependencies, problem.best_ns).max()
    return float(problem.best_ns.sum() / max(1, int(path)))


def find_elite(key: GoKey, simulations: int) -> GoElite | None:
    """All candidates simulated, and two of the better ones improved; None where the example does not suit."""
    if not suits(key):
        return None
    problem = make_problem(key)
    candidates = candidates_of(problem, features_of(problem))
    devices, rng = ints(candidates.device), np.random.default_rng([key.line + 1, key.seed, 2])
    ranks = critical_ranks(problem, devices)
    over, value = Search(problem, Budget(None, len(candidates))).score_many(devices, ranks)
    values = worth(problem, over, value)
    order = np.argsort(values, kind="stable")
    starts = sorted({int(order[0]), int(order[rng.integers(1, 6) % len(order)])})
    found = [improved(problem, devices[start], ranks[start], simulations, rng) for start in starts]
    plans = [Plan.of(problem, device, rank) for device, rank in found]
    lines = [simulate(problem, plan) for plan in plans]
    return GoElite(
        candidates.slot,
        values,
        plain_values(problem),
        ints(starts),
        ints(np.stack([plan.device for plan in plans])),
        ints(np.stack([line.turn for line in lines])),
        worth(problem, ints([line.over_bytes for line in lines]), ints([line.step_ns for line in lines])),
    )


def worth(problem: Problem, over_bytes: Ints, value: Ints) -> Ints:
    """Step ns; of a plan that does not fit, four times that and more by what it is over."""
    share = np.minimum(1.0, over_bytes / max(1, int(problem.memory_bytes.sum())))
    return ints(np.where(over_bytes > 0, np.ceil(value * 4 * (1 + share)), value))


def improved(
    problem: Problem, device: Ints, rank: Ints, simulations: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Devices and ranks after a search that takes only gains, with all changes undone that gained nothing."""
    search = Search(problem, Budget(None, simulations), int(rng.integers(2**31)))
    improve(search, Plan.of(problem, device, rank), 0.0, 0.0, chains=1)
    assert search.best is not None
    best, order, score = search.best.device, search.best.rank, search.best_score
    judge = Search(problem, Budget(None, UNDOING))
    while judge.simulations_left:
        best, score = _undone(judge, device, best, order, score, rng)
        plain = critical_ranks(problem, best[None])[0]
        if (
            not judge.simulations_left
            or np.array_equal(plain, order)
            or (now := judge.score(Plan.of(problem, best, plain))) > score
        ):
            break
        order, score = plain, now  # other ranks, under which other changes may gain nothing
    return best, order


def _undone(
    judge: Search, device: Ints, best: Ints, order: Ints, score: Score, rng: np.random.Generator
) -> tuple[Ints, Score]:
    """Without the changes that gain nothing under that order: pieces are tried again until none of them does."""
    gained = True
    while gained and judge.simulations_left:
        gained, pieces = False, changed_pieces(judge.problem, device, best)
        for piece in rng.permutation(len(pieces)).tolist():
            undone = best.copy()
            undone[pieces[piece]] = device[pieces[piece]]
            if judge.simulations_left and (now := judge.score(Plan.of(judge.problem, ints(undone), order))) <= score:
                best, score, gained = ints(undone), now, True
    return best, score


def changed_pieces(problem: Problem, old: Ints, new: Ints) -> list[Ints]:
    """Ops that a placement has elsewhere, in pieces that hang together and went the same way."""
    start, before = problem.graph.dependencies
    after, way = rows_of(start), old * problem.num_devices + new
    along = (old[before] != new[before]) & (way[before] == way[after])
    count = problem.num_ops
    joined = csr_array((np.ones(int(along.sum())), (before[along], after[along])), shape=(count, count))
    changed = np.flatnonzero(old != new)
    label = connected_components(joined, directed=False)[1][changed]
    order = np.argsort(label, kind="stable")
    edges = np.flatnonzero(np.diff(label[order])) + 1
    return [ints(piece) for piece in np.split(changed[order], edges)] if len(changed) else []


def long_value(key: GoKey, simulations: int) -> int:
    """What the classical portfolio reaches."""
    search = Search(make_problem(key), Budget(None, simulations), key.seed)
    placement().optimize(search)
    return int(worth(search.problem, ints([search.best_score.over_bytes]), ints([search.best_score.value]))[0])


def plain_values(problem: Problem) -> Ints:
    """[BASELINES] what the plain methods are worth."""
    scores = []
    for method in (Heft(), Etf(memory=True), Expert()):
        search = Search(problem, Budget(None, 16))
        scores.append(search.score(method.optimize(search)))
    return worth(problem, ints([score.over_bytes for score in scores]), ints([score.value for score in scores]))


def example_keys(lines: Sequence[int], count: int, seed: int, drawn: float = 0.35) -> list[GoKey]:
    """Lines of the corpus in random order, again and again with other seeds, mixed with drawn graphs."""
    keys: list[GoKey] = []
    turn = 1
    while len(keys) < count:
        rng = np.random.default_rng([seed, 3, turn])
        order = rng.permutation(np.array(lines, np.int64)).tolist() or [DRAWN] * 64
        for line in order:
            if rng.random() < drawn:
                keys.append(GoKey(DRAWN, int(rng.integers(2**31))))
            keys.append(GoKey(int(line), turn if line != DRAWN else int(rng.integers(2**31))))
        turn += 1
    return keys[:count]


def save_elites(path: Path, keys: Sequence[GoKey], elites: Sequence[GoElite | None]) -> None:
    """One compressed file, put in place whole."""
    found = [elite for elite in elites if elite is not None]

    def joined(name: str, kind: type) -> NDArray[np.generic]:
        parts = [getattr(elite, name).reshape(-1) for elite in found]
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(kind)

    sizes = [(0, 0, 0) if e is None else (len(e.slot), len(e.candidate), e.device.shape[1]) for e in elites]
    columns: dict[str, NDArray[np.generic]] = {
        "keys": np.array(keys, np.int64).reshape(-1, 2),
        "sizes": np.array(sizes, np.int64).reshape(-1, 3),
        **{name: joined(name, kind) for name, kind in STORED.items()},
    }
    with writing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def load_elites(path: Path) -> dict[GoKey, GoElite | None]:
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    if "sizes" not in columns:
        return {}  # written by an older version
    at = dict.fromkeys(STORED, 0)
    found: dict[GoKey, GoElite | None] = {}

    def take(name: str, *shape: int) -> Ints:
        first = at[name]
        at[name] = first + int(np.prod(shape))
        return ints(columns[name][first : at[name]].reshape(shape))

    for (line, seed), (candidates, labels, ops) in zip(
        columns["keys"].tolist(), columns["sizes"].tolist(), strict=True
    ):
        found[GoKey(line, seed)] = None
        if candidates:
            shapes: dict[str, tuple[int, ...]] = {
                "slot": (candidates,),
                "candidate_value": (candidates,),
                "plain": (len(BASELINES),),
                "candidate": (labels,),
            }
            shapes |= {"device": (labels, ops), "turn": (labels, ops), "reached": (labels,)}
            found[GoKey(line, seed)] = GoElite(**{name: take(name, *shape) for name, shape in shapes.items()})
    return found


def make_input(key: GoKey, groups: int, kernels: bool = False) -> GoInput:
    """What the network sees of it; half of the examples without scopes."""
    scopes = bool(np.random.default_rng([key.line + 1, key.seed, 1]).random() < 0.5)
    return go_input(make_problem(key), groups, scopes=scopes, kernels=kernels)
