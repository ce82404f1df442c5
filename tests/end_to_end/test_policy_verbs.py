"""explain --policy as it is typed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from loadmaster.cli.verbs import app
from loadmaster.files import save_graph
from tests.end_to_end.conftest import parsed
from tests.unit.report.subjects import training_like


def typed(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def asked(tmp_path_factory: Any) -> tuple[str | Path, ...]:
    """A question about a plan for two equal devices."""
    folder: Path = tmp_path_factory.mktemp("policy")
    save_graph(training_like(60), folder / "model.json")
    done = typed(
        *("plan", folder / "model.json", "--on", "regal", "--objective", "peak-memory", "--method", "expert"),
        *("--save", folder / "plan.json"),
    )
    assert done.exit_code == 0, done.output
    return "explain", folder / "plan.json", "--model", folder / "model.json", "--seconds", "0.1"


def test_explain_tells_why_the_policy_decides_so(asked: tuple[str | Path, ...]) -> None:
    plain, text = typed(*asked), typed(*asked, "--policy", "regal")
    assert text.exit_code == 0, text.output
    assert "DECIDES SO" not in plain.output and "WHY REGAL DECIDES SO" in text.output
    said = parsed(typed(*asked, "--policy", "regal", "--json").output)["policy"]
    assert "policy" not in parsed(typed(*asked, "--json").output)
    assert sum(said["ops"]) == 60 and 0 <= said["held"] <= said["tested"]


def test_what_is_missing_is_named(asked: tuple[str | Path, ...], monkeypatch: Any) -> None:
    unknown = typed(*asked, "--policy", "nobody")
    assert unknown.exit_code == 1 and "policy called 'nobody'" in unknown.output
    monkeypatch.delitem(sys.modules, "loadmaster.papers.explaining", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    bare = typed(*asked, "--policy", "go")
    assert bare.exit_code == 1 and "loadmaster[torch]" in bare.output
