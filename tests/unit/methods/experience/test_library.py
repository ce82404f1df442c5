"""Plans in one file: written, found again, and as good as absent where it is torn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.errors import InvalidPlan
from loadmaster.methods.experience import Library, Store, starts_from, starts_like
from loadmaster.methods.experience.entries import packed
from loadmaster.search import Start
from tests.unit.methods.experience.stacks import stack

FEW = lm.Budget(None, 40)


def planned(layers: int = 6, width: int = 64, on: str = "2xp100-pcie") -> lm.Result:
    return lm.solve(lm.price(stack(layers, width), on), "etf", FEW)


def library(path: Path, *results: lm.Result, scopes: bool = True) -> Library:
    plans = [(str(number), packed(result, scopes)) for number, result in enumerate(results)]
    return Library.write(path, plans, {"plans": len(plans)})


def test_a_library_gives_the_starts_that_a_store_gives(tmp_path: Path) -> None:
    result, problem = planned(), lm.price(stack(6, 128), "2xp100-pcie")
    store = Store(tmp_path / "store")
    store.remember(result)
    mine = library(tmp_path / "plans.zip", result)
    assert mine.card == {"plans": 1}
    (one,), (other,) = starts_like(problem, [mine]), store.starts(problem)
    assert one.origin == other.origin == "stack of 6 on 2xp100-pcie"
    assert np.array_equal(one.plan.device, other.plan.device)
    assert np.array_equal(one.plan.rank, other.plan.rank)
    both = starts_like(problem, [store, mine])
    assert [start.origin for start in both] == [one.origin] * 2


def test_the_same_plans_are_the_same_bytes(tmp_path: Path) -> None:
    results = [planned(layers) for layers in (4, 6)]
    one, other = (library(tmp_path / name, *results).path.read_bytes() for name in ("one.zip", "other.zip"))
    assert one == other


def test_plans_for_as_many_devices_come_first(tmp_path: Path) -> None:
    counts = {count: planned(on=f"{count}xp100-pcie") for count in (2, 4, 8)}
    mine = library(tmp_path / "plans.zip", *counts.values())
    for count in counts:
        first: Start = starts_like(lm.price(stack(6, 128), f"{count}xp100-pcie"), [mine])[0]
        assert first.origin == f"stack of 6 on {count}xp100-pcie"


def test_without_the_names_of_modules_a_model_with_others_matches(tmp_path: Path) -> None:
    from dataclasses import replace

    graph = stack(6, 128)
    other = lm.price(replace(graph, scope=tuple(f"net.{path}" for path in graph.scope)), "2xp100-pcie")
    named = library(tmp_path / "named.zip", planned())
    bare = library(tmp_path / "bare.zip", planned(), scopes=False)
    assert starts_like(other, [named]) == []
    (start,) = starts_like(other, [bare])
    assert np.array_equal(start.plan.device, planned().plan.device)


def test_like_takes_a_library(tmp_path: Path) -> None:
    mine, result = library(tmp_path / "plans.zip", planned()), planned(width=128)
    (start,) = starts_from(mine.path, result.problem)
    assert start.origin == "stack of 6 on 2xp100-pcie"


def test_what_is_torn_is_as_good_as_absent(tmp_path: Path) -> None:
    whole = library(tmp_path / "plans.zip", planned())
    data = whole.path.read_bytes()
    problem = lm.price(stack(6, 128), "2xp100-pcie")
    (tmp_path / "torn.zip").write_bytes(data[: len(data) // 2])
    assert starts_like(problem, [Library(tmp_path / "torn.zip")]) == []
    half = packed(planned())[:-40]
    foreign = Library.write(tmp_path / "foreign.zip", [("a", b"PK"), ("b", half)], {})
    assert starts_like(problem, [foreign]) == []
    with pytest.raises(InvalidPlan, match="no library"):
        Library(tmp_path / "torn.zip").card  # noqa: B018


def test_a_zip_file_without_plans_is_no_start(tmp_path: Path) -> None:
    import zipfile

    import loadmaster as lm
    from loadmaster.errors import InvalidPlan
    from loadmaster.methods.experience import starts_from
    from loadmaster.zoo.synthetic import generate

    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.plan", bytes(2**24))
    problem = lm.price(next(generate("layered", 1, seed=0, ops=8)), "2xp100-pcie")
    with pytest.raises(InvalidPlan, match="no plan can be read"):
        starts_from(tmp_path / "bomb.zip", problem)
