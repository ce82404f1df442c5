"""Plans that are kept, found again, bounded and forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.errors import InvalidPlan
from loadmaster.methods.experience import Known, Store, starts_from
from loadmaster.methods.experience.entries import alike
from loadmaster.plans import Plan
from loadmaster.search import Start
from tests.unit.methods.experience.stacks import stack

FEW = lm.Budget(None, 40)


def planned(layers: int = 6, width: int = 64, on: str = "2xp100-pcie", method: str = "etf") -> lm.Result:
    return lm.solve(lm.price(stack(layers, width), on), method, FEW)


def test_a_plan_is_found_again_for_a_problem_like_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    result = planned()
    assert store.remember(result)
    wider = lm.price(stack(6, 128), "2xp100-pcie")
    (start,) = store.starts(wider)
    assert np.array_equal(start.plan.device, result.plan.device)
    assert start.origin == "stack of 6 on 2xp100-pcie"


def test_a_problem_unlike_all_others_begins_from_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.remember(planned())
    assert store.starts(lm.price(lm.load("zoo:wavenet-2x18", training=False), "2xp100-pcie")) == []
    assert store.starts(lm.price(stack(6), "2xp100-pcie", objective="peak-memory")) == []


def test_only_a_better_plan_takes_the_place_of_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = planned(method="auto")
    bad = lm.solve(good.problem, "random", lm.Budget(None, 1), 5)
    assert bad.value > good.value
    assert store.remember(bad)
    assert store.remember(good)
    assert not store.remember(bad)
    (entry,) = store.entries()
    assert entry.value == good.value


def test_the_least_recently_used_go_when_there_is_too_much(tmp_path: Path) -> None:
    import os

    store = Store(tmp_path)
    for age, layers in enumerate((3, 4, 5)):
        store.remember(planned(layers))
        newest = next(path for path in tmp_path.glob("*.plan") if path.stat().st_mtime > 10_000)
        os.utime(newest, (1000 + age, 1000 + age))
    other = Store(tmp_path / "other")
    other.remember(planned(7))
    small = replace(store, most_bytes=store.nbytes + other.nbytes - 1)  # one too many
    small.remember(planned(7))
    assert sorted(entry.model for entry in small.entries()) == ["stack of 4", "stack of 5", "stack of 7"]


def test_torn_and_foreign_files_are_as_good_as_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.remember(planned())
    (whole,) = tmp_path.iterdir()
    data = whole.read_bytes()
    for name, text in (("a", b""), ("b", data[:60]), ("c", b"PK\x03\x04"), ("d", data[:-50])):
        (tmp_path / f"{name}.plan").write_bytes(text)
    problem = lm.price(stack(6, 128), "2xp100-pcie")
    assert len(store.starts(problem)) == 1
    assert store.clear() == 5
    assert store.entries() == []


def test_a_place_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "plans")
    assert not store.remember(planned())
    assert store.entries() == []
    assert store.starts(planned().problem) == []


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "plans")
    store.remember(planned())
    assert (tmp_path / "plans").stat().st_mode & 0o077 == 0


def test_likeness_of_sketches_is_the_share_in_common() -> None:
    assert alike((1, 2, 3, 4), (1, 2, 3, 4)) == 1
    assert alike((1, 2), (3, 4)) == 0
    assert alike((1, 2, 3), (2, 3, 4)) == 0.5


def test_what_is_remembered_survives_being_written(tmp_path: Path) -> None:
    result = planned()
    known = Known.of(result.problem, result.plan)
    again = Known.from_text(known.to_text(), "here")
    for name in ("device", "place", "work", "speed"):
        assert np.array_equal(getattr(known, name), getattr(again, name))
    assert np.array_equal(known.sight.classes, again.sight.classes)


@pytest.mark.parametrize("text", ["", "!!", "UEsDBA==", 5, None, "AAAA"])
def test_what_is_no_memory_of_a_plan_is_refused_by_name(text: object) -> None:
    with pytest.raises(InvalidPlan, match="remembers"):
        Known.from_text(text, "plan.json")


def test_a_saved_plan_is_a_start(tmp_path: Path) -> None:
    result = planned()
    result.save(tmp_path / "plan.json")
    wider = lm.plan(stack(6, 256), on="2xp100-pcie", budget=FEW, method="one-device", like=tmp_path / "plan.json")
    assert wider.started_from == ("plan.json",)
    (start,) = starts_from(tmp_path / "plan.json", wider.problem)
    assert np.array_equal(start.plan.device, result.plan.device)


def test_an_older_file_counts_op_by_op(tmp_path: Path) -> None:
    from loadmaster.files import save_plan

    result = planned()
    save_plan(result.plan, result.problem, tmp_path / "old.json")
    (start,) = starts_from(tmp_path / "old.json", lm.price(stack(6, 128), "2xp100-pcie"))
    assert np.array_equal(start.plan.device, result.plan.device)
    with pytest.raises(InvalidPlan, match="another number of ops"):
        starts_from(tmp_path / "old.json", lm.price(stack(7), "2xp100-pcie"))


def test_no_method_ends_worse_than_its_starts() -> None:
    problem = lm.price(stack(6), "2xp100-pcie")
    good = lm.solve(problem, "auto", FEW)
    for method in ("random", "anneal", "auto", "local-search"):
        begun = lm.solve(problem, method, lm.Budget(None, 3), starts=[Start(good.plan, "before")])
        assert begun.value <= good.value
        assert begun.started_from == ("before",)


def test_a_start_of_another_problem_is_refused() -> None:
    good = planned()
    other = lm.price(stack(7), "2xp100-pcie")
    with pytest.raises(InvalidPlan):
        lm.solve(other, "auto", FEW, starts=[Start(Plan.of(good.problem, good.plan.device), "elsewhere")])


@pytest.mark.parametrize("text", ['{"schema": "loadmaster.graph/1"}', "{}", "[]"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(InvalidPlan, match="this is no plan of ops"):
        starts_from(tmp_path / "other.json", planned().problem)
