"""Plans on disk: exact to the last number, readable by a person, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.files import (
    cluster_from_json,
    graph_from_json,
    load_plan,
    plan_from_json,
    plan_to_json,
    save_plan,
)
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from tests.strategies import plans, problems
from tests.unit.files.samples import CLUSTER, ENDINGS, GRAPH, Data, changed, op, same


@pytest.fixture(scope="module")
def problem() -> Any:
    return price(graph_from_json(changed(GRAPH, op(1, time_ns=5))), cluster_from_json(CLUSTER))


@settings(max_examples=40)
@given(data=st.data())
def test_any_plan_round_trips(data: st.DataObject) -> None:
    problem = data.draw(problems(max_ops=8))
    plan = data.draw(plans(problem))
    again = plan_from_json(json.loads(json.dumps(plan_to_json(plan, problem))))
    assert same(plan, again)


@pytest.mark.parametrize("ending", ENDINGS)
def test_plan_round_trip_with_sends(tmp_path: Path, problem: Any, ending: str) -> None:
    ranks = np.full((problem.graph.num_tensors, 3), -1)
    ranks[0, 2], ranks[2, 1] = 4, 0
    for send_rank in (None, ints(ranks), ints(np.full_like(ranks, -1))):
        plan = dataclasses.replace(Plan.of(problem, [1, 1, 0], [7, 7, 2**31 - 1], [0, 1, 2]), send_rank=send_rank)
        save_plan(plan, problem, tmp_path / f"p{ending}", {"seed": 3})
        assert same(load_plan(tmp_path / f"p{ending}"), plan)


def test_plan_can_be_read_by_a_person(tmp_path: Path, problem: Any) -> None:
    plan = Plan.of(problem, [1, 1, 2], [4, 2, 9], [0, 0, 2])
    save_plan(
        plan,
        problem,
        tmp_path / "p.json",
        {"method": "heft", "seconds": np.float64(0.5), "peak_bytes": ints([1, 2])},
    )
    text = (tmp_path / "p.json").read_text()
    rows = [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if '"op"' in line]
    assert rows == [
        {"op": 0, "name": "mul", "on": "b", "device": 1, "rank": 4, "kernel": 0}
        | {"module": "layer.0", "source": "model.py:3", "weights": ["w"]},
        {"op": 1, "name": "step", "on": "b", "device": 1, "rank": 2, "kernel": 0, "weights": ["w"]},
        {"op": 2, "name": "add", "on": "c", "device": 2, "rank": 9, "kernel": 2, "weights": ["b"]},
    ]
    data = json.loads(text)
    assert data["graph"] == {"name": "small", "digest": problem.source.digest}
    assert data["cluster"] == {"name": "three", "digest": problem.cluster.digest, "devices": ["a", "b", "c"]}
    assert (data["method"], data["seconds"], data["peak_bytes"]) == ("heft", 0.5, [1, 2])
    save_plan(plan, problem, tmp_path / "q.json", {"method": "heft", "seconds": 0.5, "peak_bytes": [1, 2]})
    assert (tmp_path / "q.json").read_text() == text


def test_extra_keys_may_not_hide_the_plan(tmp_path: Path, problem: Any) -> None:
    with pytest.raises(InvalidSetting, match="'ops'"):
        save_plan(Plan.of(problem, [0, 0, 0]), problem, tmp_path / "p.json", {"ops": 3})


def test_broken_plans_are_not_written(tmp_path: Path, problem: Any) -> None:
    with pytest.raises(InvalidPlan):
        save_plan(Plan.of(problem, [0, 0, 9]), problem, tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()


BROKEN_PLANS: dict[str, tuple[Callable[[Data], object], list[str]]] = {
    "op missing": (lambda p: p["ops"].pop(), ["2", "3"]),
    "op twice": (lambda p: p["ops"][1].update(op=0), ["each once"]),
    "device as text": (lambda p: p["ops"][1].update(device="b"), ["ops[1]", "device", "'b'"]),
    "fractional rank": (lambda p: p["ops"][1].update(rank=0.5), ["ops[1]", "rank"]),
    "huge rank": (lambda p: p["ops"][1].update(rank=2**31), ["ops[1]", "rank"]),
    "no kernel": (lambda p: p["ops"][1].pop("kernel"), ["ops[1]", "kernel"]),
    "op as list": (lambda p: p["ops"].__setitem__(1, []), ["ops[1]"]),
    "no counts": (lambda p: p.pop("counts"), ["counts"]),
    "huge counts": (lambda p: p["counts"].update(tensors=2**26, devices=2**26), ["too many"]),
    "negative counts": (lambda p: p["counts"].update(devices=-1), ["counts", "devices"]),
    "no digest": (lambda p: p["graph"].pop("digest"), ["graph", "digest"]),
    "digest as number": (lambda p: p["cluster"].update(digest=3), ["cluster", "digest"]),
    "send of nothing": (lambda p: p["sends"][0].update(tensor=99), ["sends[0]", "99"]),
    "send to nowhere": (lambda p: p["sends"][0].update(to=-1), ["sends[0]", "-1"]),
    "send twice": (lambda p: p["sends"].append(p["sends"][0]), ["twice"]),
    "sends as number": (lambda p: p.update(sends=3), ["sends"]),
}


@pytest.mark.parametrize("case", BROKEN_PLANS)
def test_broken_plan_names_the_culprit(case: str, problem: Any) -> None:
    ranks = np.full((problem.graph.num_tensors, 3), -1)
    ranks[0, 2] = 4
    plan = dataclasses.replace(Plan.of(problem, [1, 1, 0]), send_rank=ints(ranks))
    change, words = BROKEN_PLANS[case]
    with pytest.raises(InvalidPlan) as caught:
        plan_from_json(changed(plan_to_json(plan, problem), change), "p.json")
    assert caught.value.fix and "p.json" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_model_that_lies_in_a_plan_comes_back_or_is_refused() -> None:
    import base64
    import zlib

    from loadmaster.files.plan import MOST_BYTES, graph_of_plan
    from tests.graphs import tiny

    problem = price(dataclasses.replace(tiny.diamond(), captured={"mode": "infer"}), tiny.pair())
    data = plan_to_json(Plan.of(problem, [0] * problem.num_ops), problem)
    graph = graph_of_plan(data)
    assert graph is not None and graph.digest == problem.source.digest and graph.captured == {"mode": "infer"}
    assert graph_of_plan({}) is None
    bomb = base64.b64encode(zlib.compress(b" " * (MOST_BYTES + 1))).decode()
    for wrong in (7, "no base 64!", base64.b64encode(b"plain").decode(), bomb):
        with pytest.raises(InvalidPlan, match=r"unpacked|more than"):
            graph_of_plan({"model": wrong})
