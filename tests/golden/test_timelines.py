"""The kept timelines of the tiny graphs, as the simulator and as the reference see them.

Each is one graph on two devices. `python -m tests.golden.test_timelines` writes them afresh; read the difference
before you keep it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline, simulate
from tests.graphs import GRAPHS, pair
from tests.reference import judge

FOLDER = Path(__file__).parent / "timelines"


def case(name: str) -> tuple[Problem, Plan]:
    """The named graph, ops 0, 3, 4, 7, … on d0 and the others on d1: neighbours are together and apart."""
    problem = price(GRAPHS[name](), pair(memory_bytes=150))
    device = (np.arange(problem.num_ops) + 1) // 2 % 2
    return problem, Plan.of(problem, device)


def as_data(line: Timeline) -> dict[str, Any]:
    """The timeline as plain lists; sends sorted."""
    columns = (line.send_tensor, line.send_src, line.send_dst, line.send_start_ns, line.send_end_ns)
    curves = [line.curve(device) for device in range(len(line.peak_bytes))]
    return {
        "step_ns": line.step_ns,
        "start_ns": line.start_ns.tolist(),
        "end_ns": line.end_ns.tolist(),
        "sends": sorted(list(send) for send in zip(*(column.tolist() for column in columns), strict=True)),
        "peak_bytes": line.peak_bytes.tolist(),
        "over_bytes": line.over_bytes,
        "curves": [[list(point) for point in zip(ns.tolist(), held.tolist(), strict=True)] for ns, held in curves],
    }


def as_text(data: dict[str, Any]) -> str:
    return "{\n" + ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in data.items()) + "\n}\n"


every_graph = pytest.mark.parametrize("name", GRAPHS)


def kept(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


@every_graph
def test_simulate_gives_the_kept_timeline(name: str) -> None:
    assert as_data(simulate(*case(name))) == kept(name)


@every_graph
def test_reference_gives_the_kept_timeline(name: str) -> None:
    judged, golden = judge(*case(name)), kept(name)
    assert judged.step_ns == golden["step_ns"]
    assert (judged.start, judged.end) == (golden["start_ns"], golden["end_ns"])
    assert [list(send) for send in judged.sends] == golden["sends"]
    assert (judged.peak, judged.over_bytes) == (golden["peak_bytes"], golden["over_bytes"])
    curves = [[list(point) for point in judged.curve(device)] for device in (0, 1)]
    assert curves == golden["curves"]


def test_every_file_has_a_graph() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(GRAPHS)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in GRAPHS:
        (FOLDER / f"{name}.json").write_text(as_text(as_data(simulate(*case(name)))))


if __name__ == "__main__":
    main()
