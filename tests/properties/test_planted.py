"""Mistakes in each rule of the simulator and in each bound are seen (tests/planted.py has the table)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planted import BOUNDS, MISTAKES, ROOT, RULES, checked, seen
from tests.planted_checks import least_of_all

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def least(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("least") / "least.json"
    file.write_text(json.dumps(least_of_all()))
    return file


@pytest.mark.parametrize("check", sorted({mistake.check for mistake in MISTAKES.values()}))
def test_the_source_as_it_is_has_none(check: str, least: Path) -> None:
    assert checked(ROOT / "src", check, least) == ""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name: str, least: Path) -> None:
    assert seen(MISTAKES[name], least)


def test_there_is_one_for_each_rule_and_for_each_file_of_bounds() -> None:
    assert [mistake.name for mistake in RULES] == [f"rule {number}" for number in range(1, 16)]
    files = {path.name for path in (ROOT / "src/loadmaster/problem/bounds").glob("[a-z]*.py")}
    # Those that put the others together, say what they are of, and how long there is.
    assert files - {Path(mistake.file).name for mistake in BOUNDS} <= {"allowed.py", "among.py", "bounds.py"}
