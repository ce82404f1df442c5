"""explain --policy and plot --what policy as they are typed, with weights of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from loadmaster.cli.verbs import app
from loadmaster.files import load_plan, save_graph
from loadmaster.learn.regal2020.actions import load_policy
from tests.end_to_end.conftest import parsed
from tests.unit.learn.regal2020.test_summary import saved
from tests.unit.report.subjects import training_like


def typed(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def here(tmp_path_factory: Any) -> Path:
    """A model, a plan of it for two equal devices, and a policy."""
    folder: Path = tmp_path_factory.mktemp("policy")
    save_graph(training_like(150), folder / "model.json")
    saved(folder / "mine.safetensors", certainty=8.0)
    done = typed(
        *("plan", folder / "model.json", "--on", "regal", "--objective", "peak-memory", "--method", "expert"),
        *("--save", folder / "plan.json"),
    )
    assert done.exit_code == 0, done.output
    return folder


def test_explain_tells_what_the_policy_says(here: Path) -> None:
    asked = ("explain", here / "plan.json", "--model", here / "model.json", "--seconds", "0.1")
    plain, text = typed(*asked), typed(*asked, "--policy", here / "mine.safetensors")
    assert text.exit_code == 0, text.output
    assert "WHAT THE POLICY" not in plain.output
    for words in ("WHAT THE POLICY MINE SAYS", "fan-out", "depth", "Unsure of, the heaviest first", "elite bias"):
        assert words in text.output
    found = parsed(typed(*asked, "--policy", here / "mine.safetensors", "--json").output)
    assert "policy" not in parsed(typed(*asked, "--json").output)
    said = found["policy"]
    assert said["objective"] == "peak-memory"
    assert f"unsure of the device of {said['unsure_ops']} of 150 ops" in text.output
    plan = load_plan(here / "plan.json").device.tolist()
    likeliest = [row.index(max(row)) for row in said["ops"]["chance"]]
    same = sum(one == two for one, two in zip(plan, likeliest, strict=True))
    assert said["agreement"]["ops"] == pytest.approx(max(same, 150 - same) / 150)


def test_plot_draws_the_action_the_same_every_time(here: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = ("tools", "plot", here / "plan.json", "--model", here / "model.json", "--what", "policy")
    for name in ("one.svg", "two.svg"):
        done = typed(*asked, "--policy", here / "mine.safetensors", "--out", here / name)
        assert done.exit_code == 0, done.output
    text = (here / "one.svg").read_text()
    assert text == (here / "two.svg").read_text()
    for label in ("bytes made and workspace", "fan-out", "depth", "mirrored place", "chance of device:1", "doubt"):
        assert label in text


def test_what_is_missing_is_named(here: Path, monkeypatch: Any) -> None:
    asked = ("explain", here / "plan.json", "--model", here / "model.json", "--seconds", "0.1", "--policy")
    unknown = typed(*asked, "nobody")
    assert unknown.exit_code == 1
    assert "no trained weights 'nobody'" in unknown.output
    load_policy.cache_clear()
    monkeypatch.delitem(sys.modules, "loadmaster.papers.weights", raising=False)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    bare = typed(*asked, here / "mine.safetensors")
    assert bare.exit_code == 1
    assert "loadmaster[torch]" in bare.output
