"""Any file, however damaged, either loads or raises an error of ours: never anything else, and never for long."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.errors import LoadmasterError
from loadmaster.files import cluster_from_json, graph_from_json, load_cluster, load_graph, load_plan, plan_to_json
from loadmaster.plans import Plan, check
from tests.unit.files.samples import CLUSTER, GRAPH, changed, op

PROBLEM = price(graph_from_json(changed(GRAPH, op(1, time_ns=5))), cluster_from_json(CLUSTER))
PLAN = json.loads(json.dumps(plan_to_json(Plan.of(PROBLEM, [1, 1, 0]), PROBLEM)))
PLAN["sends"] = [{"tensor": 0, "to": 2, "rank": 1}]
FORMATS: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "graph": (GRAPH, load_graph),
    "cluster": (CLUSTER, load_cluster),
    "plan": (PLAN, load_plan),
}
every_format = pytest.mark.parametrize("kind", FORMATS)

Place = list[str | int]
HOSTILE = [
    None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 10**30, 10**400, "", "a", "\0", "é",
    "9" * 5000,
    [], {}, [[]], [None], [-1], [0, 0], ["w", "w"], {"": None}, {"default": 1}, {"bytes": {}}, [{"id": 0}], [2**64],
]  # fmt: skip


def places(value: Any, here: Place | None = None) -> list[Place]:
    """The path to every value inside."""
    here = here or []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, part in inside for place in places(part, [*here, key]))]


def swap(data: Any, place: Place, change: Callable[[Any, Any], None]) -> Any:
    """A copy in which `change(container, key)` was applied at the place."""
    root = {"root": copy.deepcopy(data)}
    container: Any = root
    for key in (keys := ["root", *place])[:-1]:
        container = container[key]
    change(container, keys[-1])
    return root.get("root")


def replaced(by: Any) -> Callable[[Any, Any], None]:
    return lambda container, key: container.__setitem__(key, by)


def dropped(container: Any, key: Any) -> None:
    del container[key]


def doubled(container: Any, key: Any) -> None:
    if isinstance(container, list):
        container.append(copy.deepcopy(container[key]))
    else:
        container[f"{key}_"] = container[key]


@st.composite
def damaged(draw: Any, data: dict[str, Any]) -> Any:
    """The data after one to three changes: a part dropped, doubled, replaced by another or by something hostile."""
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(data, dict | list):
            break
        everywhere = places(data)
        place = draw(st.sampled_from(everywhere))
        donor: Any = data
        for key in draw(st.sampled_from(everywhere)):
            donor = donor[key]
        by = draw(st.sampled_from([*HOSTILE, donor]))
        data = swap(data, place, draw(st.sampled_from([dropped, doubled, replaced(copy.deepcopy(by))])))
    return data


def outcome(kind: str, path: Path) -> Any:
    """What the file holds, or None where an error of ours says why not."""
    try:
        return FORMATS[kind][1](path)
    except LoadmasterError as error:
        assert error.what
        return None


@every_format
@settings(max_examples=400)
@given(data=st.data())
def test_structure_damaged(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"{kind}.json"
    path.write_text(json.dumps(data.draw(damaged(FORMATS[kind][0]))))
    found = outcome(kind, path)
    if kind == "plan" and found is not None:
        with suppress(LoadmasterError):
            check(found, PROBLEM)


@every_format
@settings(max_examples=150)
@given(data=st.data())
def test_bytes_damaged(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = bytearray(json.dumps(FORMATS[kind][0]).encode())
    start = data.draw(st.integers(0, len(raw)))
    raw[start : start + data.draw(st.integers(0, 40))] = data.draw(
        st.binary(max_size=12) | st.sampled_from([b"NaN", b"1e999", b"-", b"[" * 2000])
    )
    packed = data.draw(st.booleans())
    path = tmp_path_factory.getbasetemp() / f"bytes_{kind}.json{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(bytes(raw)) if packed else bytes(raw))
    outcome(kind, path)


@every_format
@settings(max_examples=100)
@given(share=st.floats(0, 1), packed=st.booleans())
@example(share=0.0, packed=True)
@example(share=0.999, packed=True)
def test_cut_short(kind: str, share: float, packed: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = json.dumps(FORMATS[kind][0]).encode()
    raw = gzip.compress(raw) if packed else raw
    path = tmp_path_factory.getbasetemp() / f"cut_{kind}.json{'.gz' if packed else ''}"
    path.write_bytes(raw[: int(share * len(raw))])
    assert (outcome(kind, path) is not None) == (int(share * len(raw)) == len(raw))


@every_format
@settings(max_examples=60)
@given(data=st.data(), depth=st.sampled_from([10, 200, 500, 800, 950, 1000, 1500, 5000, 100_000]))
def test_nested_anywhere(kind: str, data: st.DataObject, depth: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = data.draw(st.sampled_from(places(FORMATS[kind][0])))
    text = json.dumps(swap(FORMATS[kind][0], place, replaced("NEST")))
    opening, closing = data.draw(st.sampled_from([("[", "]"), ('{"a":', "}")]))
    path = tmp_path_factory.getbasetemp() / f"nested_{kind}.json"
    path.write_text(text.replace('"NEST"', opening * depth + "1" + closing * depth))
    outcome(kind, path)


@every_format
def test_the_undamaged_load(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(FORMATS[kind][0]))
    assert outcome(kind, path) is not None
