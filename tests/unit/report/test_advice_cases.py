"""A part of the cases of benchmarks/advice.py: every command that is advised runs, keeps what was asked, and is new."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "advice.py"
CASES = (
    ("zoo:transformer-xl-4/infer", "4xp100-pcie", ("--method", "round-robin", "--memory-limit", "15GiB")),
    ("zoo:resnet50/infer", "2xa100-nvlink", ("--method", "one-device", "--fusion", "none", "--seed", "3")),
    ("zoo:bert-base/infer", "2xp100-pcie", ("--method", "random", "--recompute", "none", "--offload", "none")),
    ("zoo:vit-base/infer", "4xp100-pcie", ("--objective", "peak-memory", "--method", "heft")),
)


@pytest.fixture(scope="module")
def advice() -> Any:
    found = importlib.util.spec_from_file_location("advice_benchmark", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_what_is_advised_runs_and_keeps_what_was_asked(
    case: Any, advice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = advice.judge(*case, seconds=0.4)
    assert row["exit"] == 0
    for action in row["actions"]:
        assert action["ran"] and action["keeps"] and not action["no_op"], action
    if "round-robin" in case[2] or "random" in case[2]:
        assert row["actions"], "the default search finds more than chance"


def test_there_are_fifty_cases_and_all_differ(advice: Any) -> None:
    cases = advice.cases(50)
    assert len(set(cases)) == 50 and len({model for model, _, _ in cases}) >= 10
