"""Trains the learned performance model, and holds it and its controls to families that it did not see.

    python benchmarks/forecast.py               # errors of ops and of busy times, folds of families, controls beside
    python benchmarks/forecast.py --fit         # also trains on all of them and writes the weights that are shipped
    python benchmarks/forecast.py --pricing     # seconds for 100,000 ops, no two of one size

Measurements are those of benchmarks/fidelity/ (every op of 18 models alone) and of benchmarks/forecast/ (single ops
over the shapes people use). A fold's families are left out whole. About four minutes of one core.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fidelity
import numpy as np

from loadmaster import GraphBuilder
from loadmaster.cluster import Cluster
from loadmaster.cost import Learned, price
from loadmaster.cost.features import GROUPS, HALVES, Floats, OpFacts, facts_of, group_of, ideal_ns, rows_of, rows_on
from loadmaster.cost.learned import LEAST_NS, LEAST_UPDATE_NS, Network
from loadmaster.graph.folding import fold
from loadmaster.graph.kinds import bare_name

HERE = Path(__file__).parent / "forecast"
SHIPPED = Path(__file__).parent.parent / "src/loadmaster/cost/learned.json"
DEVICE = Cluster.preset("1xh200").devices[0]
NAMES, HIDDEN, NETS, STEPS, FOLDS, SEED = 60, 32, 3, 2500, 6, 0
COLD_SHARE = 0.5  # of a step's ops find their operands out of the cache, as in loadmaster.cost.measured


@dataclass(frozen=True)
class Samples:
    """Ops of one step, or of a sweep, with what each took.

    Attributes:
        family: of the model; "" for a sweep, which is in every fold's training.
        taken_ns: [ops]
    """

    name: str
    family: str
    facts: tuple[OpFacts, ...]
    taken_ns: Floats

    @property
    def least(self) -> Floats:
        """[ops] what a share is of."""
        floor = [LEAST_UPDATE_NS if fact.kind.startswith("optim.") else LEAST_NS for fact in self.facts]
        return np.maximum(np.maximum(*ideal_ns(DEVICE, self.facts)), floor)


@cache
def steps() -> tuple[Samples, ...]:
    """The ops of every captured step that were timed alone."""
    timed, found = fidelity.op_rows(), []
    for graph in fidelity.cases(more=True):
        folded = fold(graph)[0]
        pairs = [(fact, timed[fact.signature]) for fact in facts_of(folded) if fact.signature in timed]
        facts, rows = zip(*pairs, strict=True)
        found.append(Samples(graph.name, graph.name.partition("-")[0], facts, np.array([taken(row) for row in rows])))
    return tuple(found)


def taken(row: dict[str, str]) -> float:
    hot, cold = int(row["hot_ns"]), int(row["cold_ns"])
    return hot + COLD_SHARE * max(0, cold - hot)


@cache
def sweep() -> tuple[Samples, ...]:
    """Single ops, if they were measured."""
    path = HERE / "ops.csv.xz"
    if not path.exists():
        return ()
    with lzma.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["note"]]
    pairs = [(fact, taken(row)) for row in rows if (fact := fact_of_call(row["signature"])) is not None]
    facts, times = zip(*pairs, strict=True)
    return (Samples("sweep", "", facts, np.array(times)),)


def fact_of_call(signature: str) -> OpFacts | None:
    """As capture would see that call, by tensors without memory."""
    import torch

    from loadmaster.importers.torch.flops import OPTIMIZER_FLOPS_PER_ELEMENT, flops_of
    from loadmaster.importers.torch.signature import _read
    from loadmaster.importers.torch.traffic import bytes_of, visible_bytes

    name, given, named = json.loads(signature)
    args, kwargs = [_read(part, "meta") for part in given], {key: _read(part, "meta") for key, part in named.items()}
    read = [part for part in _flat([args, list(kwargs.values())]) if isinstance(part, torch.Tensor)]
    first = next((part for part in read if part.is_floating_point()), read[0])
    dtype, sizes = str(first.dtype)[6:], sorted((visible_bytes(part) for part in read), reverse=True)
    if name.startswith("optim."):
        size = visible_bytes(args[0])
        flops = OPTIMIZER_FLOPS_PER_ELEMENT[name[6:]] * args[0].numel()
        return OpFacts(name, dtype, flops, 7 * size, size, size, size, 4, signature)
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    try:
        made = [part for part in _flat([op(*args, **kwargs)]) if isinstance(part, torch.Tensor)]
    except (RuntimeError, NotImplementedError):
        return None
    work = int(flops_of(op, args, kwargs, made)), bytes_of(op, read, made)
    out = max(map(visible_bytes, made))
    return OpFacts(name, dtype, *work, sizes[0], (*sizes, 0)[1], out, len(sizes), signature)


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def train(some: Sequence[Samples], seed: int = SEED) -> Network:
    """Networks on the logarithm of time over roofline; every op once with its signature and once without."""
    import torch

    torch.set_num_threads(1)
    counts = Counter(bare_name(fact.kind) for part in some for fact in part.facts)
    names = tuple(name for name, _ in counts.most_common(NAMES))
    parts = [(facts, part) for part in some for facts in (part.facts, _unsigned(part.facts))]
    rows = np.concatenate([rows_on(*ideal_ns(DEVICE, facts), rows_of(facts, names)) for facts, _ in parts])
    wanted = np.concatenate([np.log(part.taken_ns / part.least) for _, part in parts])
    both, counted = np.unique(np.round(np.column_stack([rows, wanted]), 6), axis=0, return_counts=True)
    rows, wanted = both[:, :-1], both[:, -1]
    centre, width = np.round(rows.mean(0), 4), np.round(rows.std(0) + 1e-2, 4)
    x = torch.tensor(np.clip((rows - centre) / width, -3, 3), dtype=torch.float32)
    y = torch.tensor(wanted, dtype=torch.float32)
    weight = torch.tensor(np.sqrt(counted))
    nets = [_trained(x, y, weight, seed + number) for number in range(NETS)]
    low, high = np.quantile(wanted, [0.001, 0.999]).round(3).tolist()
    return Network({}, names, centre, width, (low, high), nets, dict.fromkeys(GROUPS, 0.0), ("h200",), {})


def _trained(x: Any, y: Any, weight: Any, seed: int) -> list[tuple[Floats, Floats]]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(x.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)
    )
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    rate = torch.optim.lr_scheduler.OneCycleLR(adam, 1.5e-2, STEPS)
    for _ in range(STEPS):
        some = torch.multinomial(weight, 512, replacement=True)
        loss = nn.functional.huber_loss(net(x[some])[:, 0], y[some], delta=0.3)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        rate.step()
    layers = [part for part in net if isinstance(part, nn.Linear)]
    rounded = [(part.weight.detach().T.double().numpy(), part.bias.detach().double().numpy()) for part in layers]
    return [(np.round(w, 4), np.round(b, 4)) for w, b in rounded]


def _unsigned(facts: Sequence[OpFacts]) -> list[OpFacts]:
    return [fact._replace(signature="") for fact in facts]


Model = Callable[[Sequence[OpFacts]], Floats]


def asked(network: Network) -> Model:
    def times(facts: Sequence[OpFacts]) -> Floats:
        least = Samples("", "", tuple(facts), np.zeros(0)).least
        return least * np.exp(network(rows_on(*ideal_ns(DEVICE, facts), rows_of(facts, network.names))))

    return times


def roofline(some: Sequence[Samples]) -> Model:
    def times(facts: Sequence[OpFacts]) -> Floats:
        launch = [0 if fact.kind.startswith("optim.") else DEVICE.launch_ns for fact in facts]
        return np.maximum(np.maximum(*ideal_ns(DEVICE, facts)) + launch, 1)

    return times


Key = tuple[str, bool, int]


def table(some: Sequence[Samples]) -> Model:
    """The median share of the roofline by group, precision and power of four of the ideal time, and a floor."""
    shares: dict[Key, list[float]] = {}
    short = sorted(
        t for part in some for fact, t in zip(part.facts, part.taken_ns, strict=True) if _key(fact)[0] != "update"
    )
    floor = short[len(short) // 20]
    for part in some:
        ideals = np.maximum(*ideal_ns(DEVICE, part.facts))
        for fact, ideal, taken_ns in zip(part.facts, ideals, part.taken_ns, strict=True):
            if ideal > 0:
                shares.setdefault(_key(fact, ideal), []).append(ideal / taken_ns)
    known = {key: float(np.median(values)) for key, values in shares.items()}

    def share(key: Key) -> float:
        near = [other for other in known if other[:2] == key[:2]] or [other for other in known if other[0] == key[0]]
        return known[min(near, key=lambda other: (abs(other[2] - key[2]), other))] if near else 1.0

    def times(facts: Sequence[OpFacts]) -> Floats:
        ideals = np.maximum(*ideal_ns(DEVICE, facts))
        found = [ideal / share(_key(fact, ideal)) for fact, ideal in zip(facts, ideals, strict=True)]
        least = [1.0 if _key(fact)[0] == "update" else floor for fact in facts]
        return np.maximum(found, least)

    return times


def _key(fact: OpFacts, ideal: float = 1.0) -> Key:
    return group_of(fact.kind), fact.dtype in HALVES, math.floor(math.log(max(ideal, 1.0), 4))


def neighbour(some: Sequence[Samples]) -> Model:
    """The share of the op of that name and precision whose arithmetic and traffic are nearest."""
    known: dict[tuple[str, bool], dict[tuple[float, float], float]] = {}
    for part in some:
        points = _points(part.facts)
        for fact, point, share in zip(part.facts, points, np.log(part.taken_ns / part.least), strict=True):
            for name in (bare_name(fact.kind), group_of(fact.kind), ""):
                known.setdefault((name, fact.dtype in HALVES), {})[point] = float(share)
    tables = {key: (np.array(list(rows)), np.array(list(rows.values()))) for key, rows in known.items()}

    def times(facts: Sequence[OpFacts]) -> Floats:
        found: dict[tuple[Any, ...], float] = {}
        answers = []
        for fact, point in zip(facts, _points(facts), strict=True):
            keys = [(name, fact.dtype in HALVES) for name in (bare_name(fact.kind), group_of(fact.kind), "")]
            key = next(key for key in keys if key in tables)
            if (key, point) not in found:
                where, shares = tables[key]
                found[key, point] = float(shares[np.abs(where - np.array(point)).sum(1).argmin()])
            answers.append(found[key, point])
        return Samples("", "", tuple(facts), np.zeros(0)).least * np.exp(answers)

    return times


def _points(facts: Sequence[OpFacts]) -> list[tuple[float, float]]:
    compute, moving = ideal_ns(DEVICE, facts)
    return list(zip(np.log(np.maximum(compute, 10)).tolist(), np.log(np.maximum(moving, 10)).tolist(), strict=True))


CONTROLS = {"roofline": roofline, "table by kind and size": table, "nearest neighbour": neighbour}


def folds() -> Iterator[tuple[list[Samples], list[Samples]]]:
    """(for training, held out) by whole families."""
    families = sorted({part.family for part in steps()})
    shuffled = np.random.default_rng(SEED).permutation(families)
    for number in range(FOLDS):
        out = set(shuffled[number::FOLDS])
        yield [*sweep(), *(p for p in steps() if p.family not in out)], [p for p in steps() if p.family in out]


def compare() -> dict[str, dict[str, list[float]]]:
    """By model: errors of ops (logarithms) by group, and of busy times of steps (shares)."""
    found: dict[str, dict[str, list[float]]] = {}
    for known, held in folds():
        network = asked(train(known))
        models = {name: make(known) for name, make in CONTROLS.items()}
        models["network, no signatures"] = lambda facts, ask=network: ask(_unsigned(facts))
        for name, times in {**models, "network": network}.items():
            errors = found.setdefault(name, {})
            for part in held:
                told = times(part.facts)
                for fact, error in zip(part.facts, np.log(told / part.taken_ns).tolist(), strict=True):
                    errors.setdefault(group_of(fact.kind), []).append(error)
                errors.setdefault("step", []).append(math.log(told.sum() / part.taken_ns.sum()))
        print(f"{len(held)} steps of {len({part.family for part in held})} families", flush=True)
    return found


def lines(found: dict[str, dict[str, list[float]]]) -> list[str]:
    head = "| model | ops: median error | steps: median error | within 30 % | nine of ten within | worst |"
    rows = [head, "|---|--:|--:|--:|--:|--:|"]
    for name, errors in found.items():
        ops = np.abs(np.concatenate([errors[group] for group in errors if group != "step"]))
        shares = np.abs(np.expm1(errors["step"]))
        near, far = (shares <= 0.3).mean(), np.quantile(shares, 0.9)
        figures = f"{np.median(ops):.1%} | {np.median(shares):.1%} | {near:.0%} | {far:.0%} | {shares.max():.0%}"
        rows.append(f"| {name} | {figures} |")
    return rows


def interval(errors: dict[str, list[float]]) -> tuple[dict[str, float], float]:
    """By group the usual error, brought to the scale at which a step's interval holds four of five; that scale."""
    usual = {group: float(np.median(np.abs(errors[group]))) if errors.get(group) else 0.5 for group in GROUPS}
    weights = {part.name: part for part in steps()}
    scale = float(np.quantile(np.abs(errors["step"]), 0.8) / np.mean([_usual(p, usual) for p in weights.values()]))
    return {group: round(error * scale, 3) for group, error in usual.items()}, scale


def _usual(part: Samples, usual: dict[str, float]) -> float:
    """Of a step: the mean over its time."""
    errors = np.array([usual[group_of(fact.kind)] for fact in part.facts])
    return float((errors * part.taken_ns).sum() / part.taken_ns.sum())


def ship(found: dict[str, dict[str, list[float]]], rows: list[str]) -> None:
    network = train([*sweep(), *steps()])
    error, _ = interval(found["network, no signatures"])
    ops = sum(len(set(part.facts)) for part in steps())
    card = {
        "what": "logarithm of an op's time over its roofline, by three small networks",
        "command": "python benchmarks/forecast.py --fit",
        "data": f"{ops} ops of 18 models, {sum(len(p.facts) for p in sweep())} single ops, one H200, torch 2.11",
        "seed": SEED,
        "held out": rows,
    }
    data = {
        "card": card,
        "tested": list(network.tested),
        "limits": list(network.limits),
        "error": error,
        "generated": generated(),
        "names": list(network.names),
        "centre": network.centre.tolist(),
        "width": network.width.tolist(),
        "nets": [[[w.tolist(), b.tolist()] for w, b in net] for net in network.nets],
    }
    SHIPPED.write_text(json.dumps(data, separators=(",", ":")).replace('"names"', '\n"names"') + "\n")
    print(f"{SHIPPED.stat().st_size} bytes; usual errors {error}")


def pricing(ops: int = 100_000) -> str:
    """Products and additions in turn, one after another."""
    g = GraphBuilder("many")
    last = g.tensor(2 * 64 * 64, "input")
    for number in range(ops):
        size = 2 * 64 * (64 + number)
        made = g.tensor(size)
        kind = "aten.mm.default" if number % 2 else "aten.add.Tensor"
        g.op(f"op{number}", kind, [last], [made], flops=64 * size, dtype="bfloat16")
        last = made
    graph, seconds = g.build(), []
    for cost in (None, Learned()):
        begun = time.process_time()
        price(graph, "1xh200", cost=cost)
        seconds.append(time.process_time() - begun)
    return f"pricing {ops:,} ops: {seconds[0]:.2f} s by data sheet, {seconds[1]:.2f} s learned"


def generated() -> dict[str, list[float]]:
    """By what Inductor makes of ops (pointwise loops, reductions): ns of its shortest kernel, and the share of the
    bandwidth that large ones reach, from compiled steps of the families that may be fitted to."""
    found: dict[str, list[tuple[float, float]]] = {"pointwise": [], "reducing": []}
    with lzma.open(HERE / "kernels.csv.xz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            meta = json.loads(row["meta"] or "[]")
            if (
                "/4-" not in row["case"]
                or row["mode"] != "compiled"
                or len(meta) != 1
                or "kernel_num_gb" not in meta[0]
            ):
                continue
            way = "pointwise" if row["op"].startswith("triton_poi") else "reducing"
            ideal = meta[0]["kernel_num_gb"] * 1e18 / DEVICE.bytes_per_s
            found[way].append((ideal, int(row["total_ns"]) / int(row["count"])))
    return {way: _floor_and_share(np.array(pairs)) for way, pairs in found.items()}


def _floor_and_share(pairs: Floats) -> list[float]:
    """With the least mean error of logarithms."""
    tried = [(floor, share) for floor in range(500, 3001, 50) for share in np.arange(0.4, 1.001, 0.02)]
    missed = [np.abs(np.log((floor + pairs[:, 0] / share) / pairs[:, 1])).mean() for floor, share in tried]
    floor, share = tried[int(np.argmin(missed))]
    return [float(floor), round(float(share), 2)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--pricing", action="store_true")
    settings = parser.parse_args()
    if settings.pricing:
        print(pricing())
        return
    found = compare()
    rows = lines(found)
    print("\n".join(rows), flush=True)
    if settings.fit:
        ship(found, rows)


if __name__ == "__main__":
    main()
