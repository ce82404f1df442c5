"""Task graphs: tasks with a time, edges with a size. Standard Task Graphs, DOPPLER's graphs and WfCommons' workflows.

A task makes one tensor, which all that wait for it read; where the format gives no size, it has none. In the first two
a unit of time is a microsecond and a nanosecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import ImportFailed, UnreadableFile
from loadmaster.files.text import PathLike, Row, read_json
from loadmaster.graph import MOST_BYTES, MOST_NS, Graph, GraphBuilder
from loadmaster.importers.reading import read_text, stem_of

STG_UNIT_NS = 1000  # the suite has no unit: a microsecond keeps times of links comparable
_MOST_TASKS = 5_000_000  # more would take gigabytes before anything could be said of the file


@dataclass(slots=True)
class _Task:
    name: str
    kind: str
    time_ns: int
    nbytes: int
    waits: Sequence[int]


def _graph(name: str, tasks: Sequence[_Task], where: str) -> Graph:
    builder = GraphBuilder(name)
    read = {source for task in tasks for source in task.waits}
    for number, task in enumerate(tasks):
        role = "activation" if number in read else "output"
        builder.tensor(task.nbytes, role, name=f"{task.name}:0")
    for number, task in enumerate(tasks):
        for source in task.waits:
            if not 0 <= source < len(tasks):
                raise ImportFailed(f"task '{task.name}' waits for task {source}, which is not there", where, "add it")
        builder.op(task.name, task.kind, list(task.waits), [number], time_ns=task.time_ns)
    return builder.build()


# Standard Task Graph Set, https://www.kasahara.cs.waseda.ac.jp/schedule/format_e.html


def load_stg(path: PathLike, name: str = "") -> Graph:
    """A .stg file: the number of tasks, then for each its number, time, number of predecessors and those. Files with
    communication have a time after each predecessor: what crosses is sized so that a link of 1 GB/s takes that time.
    """
    rows = _numbers(read_text(path), str(path))
    if not rows or not rows[0][1]:
        raise UnreadableFile("it has no number of tasks", str(path), "give a file of the Standard Task Graph Set")
    body = rows[1:]
    index = {row[0]: position for position, (_, row) in enumerate(body) if row}
    sizes: dict[int, int] = {}
    tasks = []
    for line, row in body:
        if len(row) < 3 or row[2] < 0 or len(row) not in (3 + row[2], 3 + 2 * row[2]):
            what = "a task is its number, its time, how many it waits for, and which"
            raise UnreadableFile(what, f"{path}, line {line}", "is it a task of the Standard Task Graph Set?")
        step = 2 if len(row) == 3 + 2 * row[2] and row[2] else 1
        waits = []
        for place in range(3, len(row), step):
            if row[place] not in index:
                what = f"task {row[0]} waits for task {row[place]}, which is not there"
                raise ImportFailed(what, f"{path}, line {line}", "add it")
            waits.append(index[row[place]])
            if step == 2:
                sizes[waits[-1]] = max(sizes.get(waits[-1], 0), row[place + 1] * STG_UNIT_NS)
        tasks.append(_Task(f"t{row[0]}", "task", _time(row[1] * STG_UNIT_NS, path), 0, waits))
    if len(index) < len(tasks):
        raise ImportFailed("two tasks have the same number", str(path), "give each a number of its own")
    for number, size in sizes.items():
        tasks[number].nbytes = min(size, MOST_BYTES)
    return _graph(name or stem_of(path), tasks, str(path))


def _numbers(text: str, where: str) -> list[tuple[int, list[int]]]:
    """The whole numbers of each line that has some, up to the notes."""
    rows = []
    for line, words in enumerate(text.splitlines(), 1):
        if words.startswith("#"):
            break
        parts = words.split()
        if not parts:
            continue
        if not all(re.fullmatch(r"-?\d{1,18}", part) for part in parts):
            raise UnreadableFile("there is something that is no number", f"{where}, line {line}", "give whole numbers")
        rows.append((line, list(map(int, parts))))
        if len(rows) > _MOST_TASKS:
            raise UnreadableFile(f"it has more than {_MOST_TASKS:,} tasks", where, "give a smaller one")
    return rows


def _time(time_ns: int, path: PathLike) -> int:
    if not 0 <= time_ns <= MOST_NS:
        raise ImportFailed(f"a task takes {time_ns} ns", str(path), f"the most is {MOST_NS}")
    return time_ns


# DOPPLER (Yao et al. 2025, arXiv 2505.23131): compute_graph/*.txt of its repository


def is_doppler(text: str) -> bool:
    """Whether five lines look like a task graph of Doppler: a count, then rows with commas."""
    lines = text.splitlines()[:5]
    return len(lines) == 5 and lines[0].strip().isdecimal() and all("," in line for line in lines[1:5])


def load_doppler(path: PathLike, name: str = "") -> Graph:
    """Number of nodes, inputs, sources of edges, their targets, then a line a node: cost of computing it, cost of
    sending what it makes, and perhaps its kind. A cost is taken as nanoseconds and as bytes: over links of 1 GB/s
    without latency both are the costs of the paper."""
    lines = read_text(path).splitlines()
    if len(lines) < 4 or not lines[0].strip().isdecimal() or len(lines[0].strip()) > 9:
        raise UnreadableFile("it does not start with the number of its nodes", str(path), "give a graph of DOPPLER")
    given, sources, targets = (_integers(line) for line in lines[1:4])
    count = int(lines[0]) - len(given)
    if len(sources) != len(targets):
        what = f"edges have {len(sources)} sources and {len(targets)} targets"
        raise ImportFailed(what, f"{path}, lines 3 and 4", "give as many of each")
    if count < 1 or len(lines) < 4 + count:
        what = f"there are {max(len(lines) - 4, 0)} lines of nodes for {count} nodes"
        raise UnreadableFile(what, str(path), "is it cut short?")
    waits: list[list[int]] = [[] for _ in range(count)]
    for source, target in zip(sources, targets, strict=True):
        if target >= count:
            raise ImportFailed(f"an edge goes to node {target} of {count}", f"{path}, line 4", "number nodes from 0")
        waits[target].append(source)
    tasks = []
    for number in range(count):
        costs, kind = _integers(lines[4 + number]), re.search(r"[A-Za-z_]+\s*$", lines[4 + number])
        if len(costs) < 2:
            raise UnreadableFile("a node is two costs", f"{path}, line {5 + number}", "is it a graph of DOPPLER?")
        size = min(costs[1], MOST_BYTES)
        label = kind[0].strip() if kind else "node"
        tasks.append(_Task(f"n{number}", label, _time(costs[0], path), size, list(dict.fromkeys(waits[number]))))
    return _graph(name or stem_of(path), tasks, str(path))


def _integers(line: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d{1,18}", line)]


# WfCommons, https://github.com/wfcommons/WfFormat


def is_workflow(data: Any) -> bool:
    """Whether it is a workflow of WfCommons: an object with a workflow in it."""
    return isinstance(data, dict) and isinstance(data.get("workflow"), dict)


def load_workflow(path: PathLike, name: str = "") -> Graph:
    """A workflow instance of WfCommons, schema 1.3 to 1.6: a task takes its measured time and makes its output files,
    which those that read them wait for; a file that nobody makes is an input."""
    data = read_json(path)
    if not is_workflow(data):
        raise UnreadableFile("there is no workflow in it", str(path), "give an instance of WfCommons")
    return workflow_graph(data, str(path), name or str(data.get("name") or stem_of(path)))


def workflow_graph(data: Any, where: str, name: str) -> Graph:
    """The tasks of a WfCommons workflow with the times of its execution; files are tensors."""
    workflow = Row(data["workflow"], f"{where}, workflow", ImportFailed)
    inner = workflow.data.get("specification")
    specification = Row(inner, f"{where}, specification", ImportFailed) if inner is not None else workflow
    tasks = [Row(task, f"{where}, task {n}", ImportFailed) for n, task in enumerate(specification.rows("tasks"))]
    builder = GraphBuilder(name)
    return _Workflow(builder, tasks, _sizes(specification, where), _runtimes(workflow, where)).graph()


def _sizes(specification: Row, where: str) -> dict[str, int]:
    """Bytes of files by id; before schema 1.5 files stand with the tasks."""
    found = {}
    for number, entry in enumerate(specification.data.get("files") or []):
        row = Row(entry, f"{where}, file {number}", ImportFailed)
        found[row.text("id")] = row.whole("sizeInBytes", MOST_BYTES)
    return found


def _runtimes(workflow: Row, where: str) -> dict[str, int]:
    execution = workflow.data.get("execution")
    if not isinstance(execution, dict):
        return {}
    found = {}
    for number, entry in enumerate(execution.get("tasks") or []):
        row = Row(entry, f"{where}, execution of task {number}", ImportFailed)
        found[row.text("id")] = _seconds(row, "runtimeInSeconds")
    return found


def _seconds(row: Row, key: str) -> int:
    value = row.any(key)
    if type(value) not in (int, float) or not 0 <= value <= MOST_NS / 1e9:
        raise row.wrong(key, "seconds, at least 0")
    return int(value * 1e9 + 0.5)


class _Workflow:
    def __init__(
        self, builder: GraphBuilder, tasks: Sequence[Row], sizes: dict[str, int], runtimes: dict[str, int]
    ) -> None:
        self.builder, self.tasks, self.sizes, self.runtimes = builder, tasks, sizes, runtimes
        self.tensors: dict[str, int] = {}

    def graph(self) -> Graph:
        ids = [task.text("id", task.data.get("name") or "") for task in self.tasks]
        files = [self._files(task) for task in self.tasks]
        read = {file for reads, _ in files for file in reads}
        made: set[str] = set()
        for _, makes in files:
            for file in makes:
                if file not in made:
                    made.add(file)
                    self._tensor(file, "activation" if file in read else "output")
        for file in read - made:
            self._tensor(file, "input")
        known, taken = set(ids), set[str]()
        for name, task, (reads, makes) in zip(ids, self.tasks, files, strict=True):
            own = [file for file in makes if file not in taken]
            taken.update(own)
            parents = [str(parent) for parent in task.data.get("parents") or []]
            lost = next((parent for parent in parents if parent not in known), None)
            if lost is not None:
                raise ImportFailed(f"task '{name}' waits for '{lost}', which is not there", task.where, "add it")
            self.builder.op(
                name,
                str(task.data.get("category") or task.data.get("name") or "task"),
                [self.tensors[file] for file in reads if file not in own],
                [self.tensors[file] for file in own],
                time_ns=self.runtimes[name] if name in self.runtimes else self._runtime(task),
                after=[parent for parent in parents if parent != name],
            )
        return self.builder.build()

    def _tensor(self, file: str, role: str) -> None:
        self.tensors[file] = self.builder.tensor(self.sizes.get(file, 0), role, name=file)

    def _files(self, task: Row) -> tuple[list[str], list[str]]:
        """What it reads and what it makes."""
        data = task.data
        if "files" in data:
            reads: list[str] = []
            makes: list[str] = []
            for number, entry in enumerate(task.rows("files")):
                row = Row(entry, f"{task.where}, file {number}", ImportFailed)
                label = row.text("id", row.data.get("name") or "")
                key = next((k for k in ("sizeInBytes", "size") if k in row.data), "")
                self.sizes[label] = row.whole(key, MOST_BYTES) if key else 0
                (reads if row.text("link", "input") == "input" else makes).append(label)
            return list(dict.fromkeys(reads)), list(dict.fromkeys(makes))
        parts = []
        for key in ("inputFiles", "outputFiles"):
            values = task.rows(key) if task.has(key) else []
            if not all(isinstance(value, str) for value in values):
                raise ImportFailed(f"'{key}' holds something that is no file", task.where, "give ids of files")
            parts.append(list(dict.fromkeys(values)))
        return parts[0], parts[1]

    def _runtime(self, task: Row) -> int:
        for key in ("runtimeInSeconds", "runtime"):
            if task.has(key):
                return _seconds(task, key)
        return 0
