"""The human expert: layers to devices by module scope, run with a framework's ready queue.

What a search must beat to be worth its time. Known models have advice (`ADVICE`), as their papers describe it; any
other is cut between layers into shares of equal time. A device five times slower than the best, such as a CPU beside
GPUs, gets no layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Search

TOO_SLOW = 5  # a device this many times slower than the best, such as the CPU beside GPUs, gets no layers


@dataclass(frozen=True)
class Expert:
    """What people do by hand (the "human expert" rows of Mirhoseini 2017, HDP 2018 and GO 2020).

    Models of the zoo follow `ADVICE`, with its reasons. Other models are cut between layers, in the order in
    which the program comes to them, into contiguous shares of equal time; without scopes, the program order is.

    Differs from the papers: their placements were never published; these follow their descriptions.

    Attributes:
        order: fifo: as a framework's ready queue takes ops; program: as they stand.
    """

    order: Literal["fifo", "program"] = "fifo"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        device = legal(problem, expert_placement(problem))
        return search.first_come(device) if self.order == "fifo" else Plan.of(problem, device)


def expert_placement(problem: Problem) -> Ints:
    """[ops] the device an expert would choose."""
    scopes = problem.graph.scope
    known = sum(1 for scope in scopes if scope)
    if problem.num_devices == 1 or known < problem.num_ops / 2:
        return shares(problem.best_ns, problem)
    device = np.full(problem.num_ops, -1, np.int64)
    if advice := advice_for(problem.graph.name):
        _follow(device, problem, advice)
    if (device < 0).all():
        unit = _by_first_use(scopes)
        place = shares(_load(problem, unit), problem)
        device[unit >= 0] = place[unit[unit >= 0]]
    return _place_rest(problem, device)


def shares(time_ns: Ints, problem: Problem) -> Ints:
    """[ops] contiguous shares in the given order, each device's in proportion to its speed."""
    speed = _speed(problem)
    edge = np.cumsum(speed) / speed.sum()
    middle = (np.cumsum(time_ns) - time_ns / 2) / max(1, time_ns.sum())
    return ints(np.minimum(np.searchsorted(edge, middle, side="right"), np.flatnonzero(speed)[-1]))


def _speed(problem: Problem) -> np.ndarray:
    """[devices] how much of the whole graph each would do in unit time; 0 where nobody would put a layer."""
    slow_ns = problem.best_ns[:, None] * 100
    total = np.where(problem.op_ns == CANNOT, slow_ns, problem.op_ns).sum(axis=0)
    speed: np.ndarray = 1.0 / np.maximum(total, 1)
    return np.where(speed * TOO_SLOW < speed.max(), 0.0, speed)


@lru_cache(maxsize=1 << 14)
def layer_of(scope: str) -> tuple[str, int]:
    """("decoder.layers", 3) of "decoder.layers.3.cell"; number -1 where no part of the path is a number."""
    parts = scope.split(".")
    for index, part in enumerate(parts):
        if re.fullmatch(r"\d+", part):
            return ".".join(parts[:index]), int(part)
    return scope, -1


def _by_first_use(scopes: Sequence[str]) -> Ints:
    """[ops] layers, and modules outside any layer, numbered as the program comes to them; -1 for ops of no module."""
    layers = [layer_of(scope) if scope else None for scope in scopes]
    number = {layer: index for index, layer in enumerate(dict.fromkeys(layer for layer in layers if layer))}
    return ints([-1 if layer is None else number[layer] for layer in layers])


def _load(problem: Problem, unit: Ints) -> Ints:
    """[units] time of the ops of each unit."""
    load = np.zeros(int(unit.max(initial=-1)) + 1, np.int64)
    np.add.at(load, unit[unit >= 0], problem.best_ns[unit >= 0])
    return ints(load)


def _follow(device: Ints, problem: Problem, advice: Recipe) -> None:
    """Places what the advice names."""
    for lane in advice.lanes:
        unit = _number(problem.graph.scope, lane.modules)
        if (unit >= 0).any():
            _place_lane(device, problem, lane, unit)


def _number(scopes: Sequence[str], modules: tuple[str, ...]) -> Ints:
    """[ops] the modules of a lane numbered in their order; -1 for ops in none of them."""
    found = [unit_of(scope, modules) for scope in scopes]
    number = {unit: index for index, unit in enumerate(sorted({unit for unit in found if unit}))}
    return ints([-1 if unit is None else number[unit] for unit in found])


def _place_lane(device: Ints, problem: Problem, lane: Lane, unit: Ints) -> None:
    first, last = (_inside(problem.graph.scope, modules) for modules in (lane.on_first, lane.on_last))
    load, able = _load(problem, ints(np.where(first | last, -1, unit))), np.flatnonzero(_speed(problem))
    if lane.cut == "layers" or len(load) <= len(able):
        place = able[ints([0, *(np.arange(len(load)) * len(able) // len(load)), -1])]
    else:
        ends = [int(problem.best_ns[there].sum()) for there in (first, last)]
        place = shares(ints([ends[0], *load, ends[1]]), problem)
    device[unit >= 0] = place[1:-1][unit[unit >= 0]]
    device[first], device[last] = place[0], place[-1]


def _inside(scopes: Sequence[str], modules: tuple[str, ...]) -> Bools:
    return np.array([unit_of(scope, modules) is not None for scope in scopes], bool)


def _place_rest(problem: Problem, device: Ints) -> Ints:
    """Ops still at -1 go, in program order, where the fewest bytes cross to or from what is placed already."""
    device = device.copy()
    for op in np.flatnonzero(device < 0).tolist():
        cost = _crossing_bytes(problem, device, op)
        device[op] = min(cost, key=lambda where: (cost[where], where)) if cost else 0
    return ints(device)


def _crossing_bytes(problem: Problem, device: Ints, op: int) -> dict[int, int]:
    """For each device with a neighbour of the op, the bytes that would be sent if the op were there too."""
    graph = problem.graph
    gets: list[tuple[int, set[int]]] = []  # bytes, and the devices that have them anyway
    for tensor in graph.reads_of(op).tolist():
        if graph.is_made[tensor]:
            there = {*_devices(device, graph.readers_of(tensor)), int(device[graph.producer[tensor]])}
            gets.append((int(graph.nbytes[tensor]), there))
    gives = [(int(graph.nbytes[t]), _devices(device, graph.readers_of(t))) for t in graph.makes_of(op).tolist()]
    near = {where for _, places in (*gets, *gives) for where in places if where >= 0}
    return {
        where: sum(size for size, places in gets if where not in places)
        + sum(size * len(places - {where, -1}) for size, places in gives)
        for where in near
    }


def _devices(device: Ints, ops: Ints) -> set[int]:
    return set(device[ops].tolist())


# Known models: placements that people use, as data.
# A lane is a run of modules in the order in which the model calls them, cut into contiguous pieces, one per device.
# `*` stands for the number of a layer, so "encoder.layers.*" is one module per layer. A module is named with all that
# is inside it, forward and backward, and with the updates of its weights. What is named nowhere goes where it sends
# least.

Cut = Literal["layers", "time"]  # equal numbers of modules per device, or equal time


@dataclass(frozen=True)
class Lane:
    """Modules that a person would split over the devices in a row.

    Attributes:
        on_first: modules on the first device.
    """

    modules: tuple[str, ...]
    cut: Cut = "time"
    on_first: tuple[str, ...] = ()
    on_last: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What an expert does with the models whose graph has such a name, and why.

    Attributes:
        models: regular expression of the graph's name without its mode.
    """

    models: str
    lanes: tuple[Lane, ...]
    why: str


ADVICE = (
    Recipe(
        r"rnnlm(-.*)?",
        (Lane(("layers.*",), "layers", ("embedding",), ("head",)),),
        "One LSTM layer per device: layer i works on word t while layer i - 1 works on word t + 1, and one hidden "
        "state a word crosses. The embedding sits with the first layer and the softmax with the last (Mirhoseini et "
        "al. 2017, arXiv 1706.04972, section 4.2), or on a device of its own where one is left.",
    ),
    Recipe(
        r"(gnmt|nmt)(-.*)?",
        (
            Lane(("encoder.layers.*",), "layers", ("source_embedding",)),
            Lane(("decoder.layers.*",), "layers", ("target_embedding", "decoder.attention"), ("head",)),
        ),
        "Layer i of the encoder and layer i of the decoder on device i (Wu et al. 2016, arXiv 1609.08144, section 3.3 "
        "and figure 1). The bottom decoder layer asks for the context of every word, so the attention sits with it. "
        "The paper cuts the softmax into pieces of the vocabulary; here it is one product and sits with the top layer, "
        "or on a device of its own where one is left.",
    ),
    Recipe(
        r"transformer-xl-.*",
        (Lane(("layers.*",), "layers", ("embedding", "dropout"), ("head",)),),
        "Equal layers in equal contiguous blocks: one hidden state crosses each cut, once forward and once backward. "
        "The embedding sits with the first block and the small softmax with the last.",
    ),
    Recipe(
        r"inception-v3(-.*)?",
        (Lane(("stem.*", "early.*", "late.*", "head")),),
        "Whole modules in contiguous shares of equal time: a cut between modules sends one tensor, a cut through one "
        "a tensor for each branch. One device is faster while the batch fits on it; two hold twice the batch.",
    ),
    Recipe(
        r"(amoebanet|nasnet|nas-cells)([-/].*)?",
        (Lane(("stem", "cells.*", "head")),),
        "Whole cells in contiguous shares of equal time, as GPipe cuts AmoebaNet (Huang et al. 2018, arXiv "
        "1811.06965): a cell reads the two before it, so a cut sends two tensors, while the ops inside a cell exchange "
        "a dozen.",
    ),
    Recipe(
        r"wavenet-.*",
        (Lane(("layers.*",), "layers", ("enter",), ("head",)),),
        "One stack of dilated layers per device: the residual and the running sum of the skips cross each cut, and the "
        "head sits where the sum ends.",
    ),
    Recipe(
        r"gpt2",
        (
            Lane(
                ("model.transformer.h.*", "model.transformer.ln_f"), "time", ("model.transformer.wte", "model.lm_head")
            ),
        ),
        "Contiguous blocks of equal time. The softmax shares its weight with the embedding, so both are on the first "
        "device and the last hidden state comes back to it: 25 MB instead of a weight and a gradient of 154 MB.",
    ),
)


def advice_for(name: str) -> Recipe | None:
    """What an expert says of the graph of that name ("gnmt-4/train"), if it is a known model."""
    model = re.sub(r"/(train|infer)$", "", name)
    return next((advice for advice in ADVICE if re.fullmatch(advice.models, model)), None)


@lru_cache(maxsize=1 << 14)
def unit_of(scope: str, modules: tuple[str, ...]) -> tuple[int, int] | None:
    """Which of the modules a scope lies in, as (place in `modules`, number of the layer); None: in none."""
    for place, module in enumerate(modules):
        pattern = re.escape(module).replace(r"\*", r"(\d+)")
        if match := re.match(rf"{pattern}(?:\.|$)", scope):
            return place, int(match[1]) if match.groups() else 0
    return None
