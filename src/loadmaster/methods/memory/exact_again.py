"""CP-SAT: which ops of a small graph run again, and in what order all run on one device, for the least time in a limit.

In the manner of Moccasin (Bartan et al. 2023): every run of an op has a position, and what it makes is held from there
to its last reader. Each op may run once more. What nothing fuses can do is decided exactly, if time allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.methods.exact.cp_sat import cp_model
from loadmaster.plans import Plan
from loadmaster.plans.additions import Additions, overwriters, reads_again, repeatable
from loadmaster.plans.expansion import expand
from loadmaster.problem import CANNOT, Problem

MOST_OPS = 40  # beyond that few problems are closed in seconds


def least_time(problem: Problem, seconds: float | None, effort: float, seed: int = 0) -> Plan | None:
    """The fastest plan that fits in which every op runs at most twice and nothing is fused; None where there is none,
    none was found in time, the problem is not small, has several devices, or CP-SAT is not installed."""
    library = cp_model()
    if library is None or not suits(problem):
        return None
    model = _AgainModel(library, problem)
    solver = library.CpSolver()
    settings = solver.parameters
    settings.random_seed, settings.num_workers = seed % 2**31, 1
    settings.max_deterministic_time = effort
    if seconds is not None:
        settings.max_time_in_seconds = max(0.01, seconds)
    status = solver.solve(model.model)
    return model.plan(solver) if status in (library.OPTIMAL, library.FEASIBLE) else None


def suits(problem: Problem) -> bool:
    """Whether the model is small enough for CP-SAT: one device, no host, and few ops."""
    one = problem.num_devices == 1 and not len(problem.dispatch_ns)
    return bool(one and problem.num_ops <= MOST_OPS and (problem.op_ns != CANNOT).all())


class _AgainModel:
    """Run r < ops is the op itself; run ops + i is op again[i] once more."""

    def __init__(self, library: Any, problem: Problem) -> None:
        graph = problem.graph
        self.problem, self.graph, self.model = problem, graph, library.CpModel()
        self.again = np.flatnonzero(repeatable(graph)).tolist()
        self.op = [*range(graph.num_ops), *self.again]
        self.runs_of: dict[int, list[int]] = {}
        for run, op in enumerate(self.op):
            self.runs_of.setdefault(op, []).append(run)
        self.length = len(self.op)
        self.there = [self.model.new_constant(1)] * graph.num_ops
        self.there += [self.model.new_bool_var("") for _ in self.again]
        self.at = [self.model.new_int_var(0, self.length - 1, "") for _ in self.op]
        self.source: dict[tuple[int, int], list[tuple[int, Any]]] = {}  # (run, tensor) -> (run that makes it, chosen)
        self._order()
        self._read()
        self._hold()
        extra = zip(self.again, self.there[graph.num_ops :], strict=True)
        self.model.minimize(sum(int(problem.op_ns[op, 0]) * there for op, there in extra))

    def _order(self) -> None:
        """One after the other; a run follows what its op follows, and what overwrites follows all runs before it."""
        spans = [
            self.model.new_optional_fixed_size_interval_var(at, 1, there, "")
            for at, there in zip(self.at, self.there, strict=True)
        ]
        self.model.add_no_overlap(spans)
        writes = overwriters(self.graph)
        for later, earlier in zip(rows_of(self.graph.after_start).tolist(), self.graph.after.tolist(), strict=True):
            for run in self.runs_of[later]:
                self._before(earlier, run)
            for run in self.runs_of[earlier] if writes[later] else ():
                self._before(run, later)

    def _before(self, one: int, other: int, *when: Any) -> None:
        self.model.add(self.at[one] < self.at[other]).only_enforce_if(self.there[one], self.there[other], *when)

    def _read(self) -> None:
        """Every run reads each made tensor from one run that is there and came before; a copy is read by somebody."""
        graph, model = self.graph, self.model
        readers: dict[int, list[Any]] = {}
        which, place = reads_again(graph, ints(self.again))
        read = [graph.reads_of(op).tolist() for op in range(graph.num_ops)]
        read += [graph.reads[place[which == number]].tolist() for number in range(len(self.again))]
        for run in range(self.length):
            for tensor in read[run]:
                maker = int(graph.producer[tensor])
                if maker < 0:
                    continue
                choices = [(made, model.new_bool_var("")) for made in self._makers(tensor, maker) if made != run]
                self.source[run, tensor] = choices
                model.add(sum(chosen for _, chosen in choices) == self.there[run])
                for made, chosen in choices:
                    model.add_implication(chosen, self.there[made])
                    self._before(made, run, chosen)
                    readers.setdefault(made, []).append(chosen)
        for run in range(graph.num_ops, self.length):
            model.add(sum(readers.get(run, [])) >= self.there[run])

    def _makers(self, tensor: int, maker: int) -> list[int]:
        """Runs that make it; what is overwritten, or overwrites, is made once."""
        return [maker] if self.graph.is_alias[tensor] else self.runs_of[maker]

    def _hold(self) -> None:
        """What is held at no position is more than the limit leaves beside what is there from start to end."""
        graph, problem, model = self.graph, self.problem, self.model
        resident = {int(graph.owner[t]) for t in graph.reads.tolist() if not graph.is_made[graph.owner[t]]}
        room = int(problem.memory_bytes[0]) - sum(int(graph.nbytes[t]) for t in resident)
        spans, sizes = [], []
        for run, tensor, last in self._lives():
            nbytes = int(graph.nbytes[tensor])
            if nbytes:
                length = model.new_int_var(1, self.length, "")
                args = (self.at[run], length, last + 1, self.there[run], "")
                spans.append(model.new_optional_interval_var(*args))
                sizes.append(nbytes)
        for run, op in enumerate(self.op):
            if graph.workspace_bytes[op]:
                spans.append(model.new_optional_fixed_size_interval_var(self.at[run], 1, self.there[run], ""))
                sizes.append(int(graph.workspace_bytes[op]))
        if room < 0:
            model.add_bool_or([])
        elif spans:
            model.add_cumulative(spans, sizes, room)

    def _lives(self) -> Iterator[tuple[int, int, Any]]:
        """(run, tensor that it makes, position of its last reader) of all that has bytes of its own."""
        graph, model = self.graph, self.model
        for run, op in enumerate(self.op):
            for tensor in graph.makes_of(op).tolist():
                if graph.is_alias[tensor]:
                    continue
                last = model.new_int_var(0, self.length - 1, "")
                model.add(last >= self.at[run]).only_enforce_if(self.there[run])
                if run < graph.num_ops and self._stays(tensor):
                    model.add(last == self.length - 1)
                for reader, chosen in self._uses(run, tensor):
                    model.add(last >= self.at[reader]).only_enforce_if(chosen)
                yield run, tensor, last

    def _uses(self, run: int, tensor: int) -> Iterator[tuple[int, Any]]:
        """(run that uses it, whether it does): reads it, reads what lies in its memory, or overwrites it."""
        owner, first = self.graph.owner, run < self.graph.num_ops
        for (reader, read), choices in self.source.items():
            for made, chosen in choices:
                if (made == run and read == tensor) or (first and read != tensor and owner[read] == tensor):
                    yield reader, chosen
        for user in self._overwriters_of(tensor) if first else ():
            yield user, self.there[user]

    def _stays(self, tensor: int) -> bool:
        """To the end of the step, itself or what lies in its memory."""
        return bool(self.problem.stays[(self.graph.owner == tensor)].any())

    def _overwriters_of(self, tensor: int) -> list[int]:
        inside = (self.graph.owner == tensor) & self.graph.is_in_place
        return [int(op) for op in self.graph.producer[inside]]

    def plan(self, solver: Any) -> Plan:
        ops = self.graph.num_ops
        used = [run for run in range(ops, self.length) if solver.value(self.there[run])]
        number = {run: i for i, run in enumerate(used)}
        rows = []
        for (run, tensor), choices in self.source.items():
            for made, chosen in choices:
                if made >= ops and solver.value(chosen):
                    rows.append((run if run < ops else ops + number[run], tensor, number[made]))
        at = [int(solver.value(self.at[run])) for run in [*range(ops), *used]]
        return in_order(self.problem, ints([self.op[run] for run in used]), sorted(rows), ints(at))


def in_order(problem: Problem, again: Ints, redirections: list[tuple[int, int, int]], at: Ints) -> Plan:
    """The plan in which the ops of the graph, then those that run again, go by their position."""
    none, device = ints(np.full(len(again), -1)), np.zeros(problem.num_ops + len(again), np.int64)
    if not len(again):
        return Plan.of(problem, device, np.argsort(np.argsort(at)))
    reader, read, source = (ints(column) for column in zip(*redirections, strict=True))
    added = Additions(again, none, none, reader, read, source)
    whole = expand(problem, added)
    assert whole.expansion is not None
    return Plan.of(whole, device, np.argsort(np.argsort(at[whole.expansion.node])))
