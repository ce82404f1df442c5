"""The kept timelines of the tiny graphs, as the simulator and as the reference see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadmaster.simulator import simulate
from tests.golden.remake import FOLDER, as_data, case
from tests.graphs import GRAPHS
from tests.reference import judge

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
