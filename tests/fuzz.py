"""Hostile input by the thousand, with a fixed seed: every reader and every method answers, or refuses in words of ours.

    python -m tests.fuzz [--cases 20000] [--seed 0] [--workers 2]

`make fuzz` runs 20,000 cases; a test runs 500. Each 500 have a seed of their own, so the same cases are tried however
many processes share them. A case is a sound document (a graph, a cluster, a plan, a record, a model of any format, a
spec, a size, weights, measured costs, an archive) with a few changes: values replaced, keys dropped or given twice,
bytes flipped, texts cut; or a small random problem given to a random method, or one with a host, judged by two routes.
Anything but a result or a LoadmasterError is a failure.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import io
import json
import logging
import lzma
import random
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import loadmaster as lm
from loadmaster import catalog
from loadmaster.bench.records import RunRecord, read_records
from loadmaster.cluster.cluster import parse_size
from loadmaster.cost import Measured, OpTime, fit
from loadmaster.cost.measured import samples_of
from loadmaster.errors import LoadmasterError
from loadmaster.files import cluster_to_json, graph_to_json, load_cluster, load_graph, load_plan, plan_to_json
from loadmaster.files.costs import costs_to_json, load_costs
from loadmaster.files.lifetimes import load_lifetimes
from loadmaster.files.profile import costs_from_profile, is_profile
from loadmaster.files.text import read_json
from loadmaster.methods.experience import starts_from
from loadmaster.report.plot import _check_comparison
from loadmaster.zoo.synthetic import KINDS, generate
from tests import offloads
from tests.unit.importers.samples import SAMPLES, write

ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 10**400, 0.5, -0.0, 1e308, "", "x", "\x1b]52;c;AAAA\x07",
    "\u2028", "\ud800", "=1+1", "a" * 5000, [], {}, [[]], [None], {"a": 1}, [1] * 1000,
)  # fmt: skip
# Those that need a package or weights, or take long on any problem: one in so many of the problems is theirs.
SLOW = ("cp-sat", "regal", "gas", "go", "go-one", "hdp", "rnn", "placeto")
SLOW_SHARE = 12
CHUNK = 500
POLICIES = ("regal", "gas", "go", "placeto")  # read a file of weights
POLICY_SHARE = 20  # one in so many of the cases of weights runs, since torch is slow


def mutated(data: Any, rng: random.Random) -> Any:
    """The document with one to three changes somewhere in it."""
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        here = data
        while isinstance(here, dict | list) and here:
            keys = list(here) if isinstance(here, dict) else range(len(here))
            key = rng.choice(list(keys))
            if not isinstance(here[key], dict | list) or not here[key] or rng.random() < 0.2:
                _change(here, key, rng)
                break
            here = here[key]
    return data


def _change(here: Any, key: Any, rng: random.Random) -> None:
    how = rng.random()
    if how < 0.15:
        del here[key]
    elif how < 0.25 and isinstance(here, dict):
        here[f"{key}x"] = here.pop(key)
    elif how < 0.35 and isinstance(here, list):
        here.insert(key, copy.deepcopy(here[key]))
    else:
        here[key] = copy.deepcopy(rng.choice(ODD))


def spoiled(raw: bytes, rng: random.Random) -> bytes:
    """The bytes with some flipped, cut or doubled."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(data)))
        how = rng.random()
        if how < 0.6 and data:
            data[at] ^= rng.randrange(1, 256)
        elif how < 0.8:
            del data[at:]
        else:
            data[at:at] = data[at : at + rng.randint(1, 40)]
    return bytes(data)


class Cases:
    """Sound documents to spoil, and what reads them."""

    def __init__(self, folder: Path, seed: int, methods: Sequence[str] | None = None) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.graphs = [next(generate(kind, 1, seed=seed + i, ops=8)) for i, kind in enumerate(KINDS)]
        problem = lm.price(self.graphs[0], "2xp100-pcie")
        result = lm.solve(problem, "heft", lm.Budget(None, 1))
        self.plan = plan_to_json(result.plan, problem)
        self.problem, self.known = problem, result.plan
        self.costs = costs_to_json(_costs(problem))
        self.graph = graph_to_json(self.graphs[0])
        self.cluster = cluster_to_json(problem.cluster)
        self.record = json.loads(
            RunRecord("r", "g", "c", "d", "step-time", "heft", "1", 0, history=((1, 2),)).to_line()
        )
        row = {"method": "heft", "lower_bound": 1, "gap": 0.5, "fits": True}
        self.comparison = {"graph": {"name": "g"}, "methods": [row]}
        self.methods = methods or sorted(name for name in catalog.METHODS if name not in SLOW)
        self.slow = () if methods else SLOW
        self.onnx = _onnx_bytes()
        self.kinds: list[Callable[[], object]] = [
            lambda: self.read(self.graph, load_graph, "g.json"),
            lambda: self.read(self.cluster, self.priced, "c.json"),
            lambda: self.read(self.plan, load_plan, "p.json"),
            lambda: self.read(self.record, lambda path: list(read_records(Path(path))), "r.jsonl"),
            lambda: _check_comparison(self.spoil(self.comparison), "c"),
            self.spec,
            self.size,
            self.model,
            self.foreign,
            self.lives,
            self.solve,
            lambda: self.read(
                self.costs, lambda path: lm.price(self.graphs[0], "2xp100-pcie", cost=load_costs(path)), "k.json"
            ),
            lambda: self.read(TRACE, self.profiled, "t.json"),
            lambda: self.read(self.plan, lambda path: starts_from(path, self.problem), "s.json"),
            self.packed,
            self.weights,
            self.archive,
            self.hosted,
        ]

    def spoil(self, data: Any) -> Any:
        found = mutated(data, self.rng)
        return found if isinstance(found, dict) else {}

    def read(self, data: Any, reader: Callable[[Any], object], name: str) -> object:
        path = self.folder / name
        text = json.dumps(mutated(data, self.rng)).encode()
        path.write_bytes(spoiled(text, self.rng) if self.rng.random() < 0.4 else text)
        return reader(path)

    def priced(self, path: Path) -> object:
        return lm.price(self.graphs[0], load_cluster(path))

    def spec(self) -> object:
        text = self.rng.choice(
            ("anneal:temperature=0.1,start=heft", "best-of:of=[heft,etf]", "greedy-fusion:inner=[heft]")
        )
        return lm.make_method(spoiled(text.encode(), self.rng).decode("utf-8", "replace"))

    def size(self) -> object:
        return parse_size(spoiled(b"16.5 GiB", self.rng).decode("utf-8", "replace"), "here")

    def model(self) -> object:
        if self.onnx is None:
            return None
        path = self.folder / "m.onnx"
        path.write_bytes(spoiled(self.onnx, self.rng))
        return lm.load(str(path))

    def foreign(self) -> object:
        """A model of one of the other formats: HLO, TensorFlow, profiles, workflows, other planners' graphs."""
        name = self.rng.choice(sorted(SAMPLES))
        packed = name.endswith(".xz")
        raw = lzma.decompress(SAMPLES[name]) if packed else SAMPLES[name]
        raw = spoiled(raw, self.rng)
        return lm.load(str(write(self.folder, name, lzma.compress(raw, preset=0) if packed else raw)))

    def profiled(self, path: Path) -> object:
        data = read_json(path)
        return costs_from_profile(data, self.graphs[0], "gpu", str(path)) if is_profile(data) else None

    def packed(self) -> object:
        """Compressed graphs: damaged inside, outside, or cut."""
        suffix, pack = self.rng.choice(((".gz", gzip.compress), (".xz", lambda data: lzma.compress(data, preset=0))))
        lines = self.rng.random() < 0.3
        text = json.dumps(mutated(self.graph, self.rng) if self.rng.random() < 0.5 else self.graph).encode()
        raw = pack(text + (b"\n" + text if lines else b""))  # type: ignore[operator]
        path = self.folder / f"packed.json{'l' if lines else ''}{suffix}"
        path.write_bytes(spoiled(raw, self.rng) if self.rng.random() < 0.6 else raw)
        return lm.load(f"{path}#{self.rng.choice((0, 1, 2, 9))}" if lines else str(path))

    def weights(self) -> object:
        """Weights of policies, given as files."""
        if not self.slow or self.rng.randrange(POLICY_SHARE):
            return None
        name = self.rng.choice(POLICIES)
        sound = _shipped("go" if name == "placeto" else name)  # placeto has no weights of its own yet
        path = self.folder / f"{name}.safetensors"
        raw = sound.read_bytes()
        path.write_bytes(
            self.rng.choice((spoiled(raw[:300], self.rng) + raw[300:], spoiled(raw, self.rng), b"", raw[:9]))
        )
        return lm.solve(self.problem, f"{name}:checkpoint={path}", lm.Budget(None, 2))

    def archive(self) -> object:
        """A library of plans, or an exported program: a zip file with damage."""
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w", self.rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as made:
            for name in self.rng.sample(("card.json", "a.plan", "b.plan", "model/data/sample_inputs/x.pt"), 3):
                made.writestr(name, self.rng.choice((b"", b"{}", json.dumps(self.plan).encode(), bytes(2**20))))
        program = bool(self.slow) and self.rng.random() < 0.3
        path = self.folder / ("program.pt2" if program else "library.zip")
        path.write_bytes(spoiled(raw.getvalue(), self.rng) if self.rng.random() < 0.7 else raw.getvalue())
        return lm.load(str(path)) if program else starts_from(path, self.problem)

    def hosted(self) -> object:
        """A training step on devices with a host, with random additions, by two routes."""
        problem = offloads.problem_of(offloads.training(self.rng), self.rng)
        plan = offloads.at_random(problem, self.rng)
        if plan.added is not None:
            differ = offloads.differences(problem, plan)
            assert not differ, f"two routes differ in {differ}"
        return plan

    def lives(self) -> object:
        path = self.folder / "lives.csv"
        path.write_bytes(spoiled(b"id,lower,upper,size\n0,0,2,10\n1,1,3,20\n2,2,4,30\n", self.rng))
        return load_lifetimes(path)

    def solve(self) -> object:
        graph = lm.GraphBuilder("hostile")
        self._fill(graph)
        problem = lm.price(graph.build(), self.rng.choice(("placeto-2", "1xp100-pcie", "4xp100-pcie")))
        method = self.rng.choice(self.slow if self.slow and not self.rng.randrange(SLOW_SHARE) else self.methods)
        result = lm.solve(problem, method, lm.Budget(None, self.rng.choice((1, 7, 40))), self.rng.randrange(9))
        assert lm.simulate(problem, result.plan).step_ns == result.timeline.step_ns >= 0
        return result

    def _fill(self, graph: lm.GraphBuilder) -> None:
        rng = self.rng
        made = [graph.tensor(rng.choice((0, 1, 2**50)), "weight")]
        for op in range(rng.randint(1, 9)):
            reads = rng.sample(made, rng.randint(0, min(3, len(made))))
            outs = [graph.tensor(rng.choice((0, 1, 1000, 2**48))) for _ in range(rng.randint(0, 2))]
            graph.op(
                f"op{op}",
                rng.choice(("add", "matmul", "")),
                reads,
                outs,
                flops=rng.choice((0, 1, 2**40)),
                colocate=rng.choice((None, None, "a", "b")),
                workspace_bytes=rng.choice((0, 0, 2**40)),
                time_ns=rng.choice((None, None, 0, 5)),
                after=[f"op{rng.randrange(op)}"] if op and rng.random() < 0.2 else (),
            )
            made += outs

    def run(self, count: int) -> list[str]:
        wrong = []
        for number in range(count):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.rng.choice(self.kinds)()
            except LoadmasterError:
                continue
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                wrong.append(
                    f"case {number}: {type(error).__name__}: {str(error)[:100]} ({where.name}, {where.lineno})"
                )
        return wrong


TRACE = {
    "traceEvents": [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5, "tid": 1,
         "args": {"Input Dims": [[2, 3], [3, 2]], "Input type": ["float", "float"], "External id": 1}},
        {"cat": "cpu_op", "name": "aten::add", "ts": 2, "dur": 2, "tid": 1,
         "args": {"Input Dims": [[2, 3]], "Input type": ["float"], "External id": 2}},
        {"cat": "kernel", "name": "k", "ts": 3, "dur": 1.5, "args": {"External id": 1}},
    ]
}  # fmt: skip


def _costs(problem: lm.Problem) -> Measured:
    times = {name: OpTime("mm", "float32", 10, 20, 5, 4, 6, 7, 0, 0, True, 9) for name in problem.graph.op_name}
    return Measured({"gpu": times}, {"gpu": fit(samples_of(times), problem.cluster.devices[0])})


def _shipped(name: str) -> Path:
    from importlib import resources

    return Path(str(resources.files("loadmaster.papers").joinpath("weights", f"{name}.safetensors")))


def _onnx_bytes() -> bytes | None:
    """Ops with weights, computed shapes, a branch and a function, so that every part of the importer has bytes here."""
    try:
        import numpy as np
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    inner = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = [
        helper.make_graph([helper.make_node(kind, ["a"], ["z"])], kind, [], [inner]) for kind in ("Relu", "Tanh")
    ]
    twice = [helper.make_node("Add", ["p", "p"], ["q"])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    weights = [
        numpy_helper.from_array(np.ones((3, 3), np.float32), "w"),
        numpy_helper.from_array(np.array([-1, 3], np.int64), "axes"),
        numpy_helper.from_array(np.array([True]), "which"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Shape", ["m"], ["s"], start=0),
        helper.make_node("Size", ["m"], ["n"]),
        helper.make_node("Reshape", ["m", "axes"], ["r"]),
        helper.make_node("Einsum", ["r", "w"], ["e"], equation="ij,jk->ik"),
        helper.make_node("Twice", ["e"], ["a"], domain="mine"),
        helper.make_node("If", ["which"], ["b"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Expand", ["b", "s"], ["y"]),
    ]
    functions = [helper.make_function("mine", "Twice", ["p"], ["q"], twice, opsets[:1])]
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=functions).SerializeToString())


def chunk(cases: int, seed: int) -> list[str]:
    """What went wrong in so many cases, in a folder of their own."""
    logging.disable()  # torch tells of each file that it cannot read
    with tempfile.TemporaryDirectory() as folder:
        return [f"seed {seed}, {wrong}" for wrong in Cases(Path(folder), seed).run(cases)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    sizes = [min(CHUNK, options.cases - begun) for begun in range(0, options.cases, CHUNK)]
    wrong = list[str]()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(chunk, sizes, range(options.seed, options.seed + len(sizes))), 1):
            wrong += found
            print(*found, f"{sum(sizes[:number]):,} cases, {len(wrong)} failures", sep="\n", flush=True)
    print(f"{options.cases:,} cases from seed {options.seed}: {len(wrong) or 'no'} failures")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
