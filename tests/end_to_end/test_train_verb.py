"""loadmaster lab train: options reach the trainer, stdout has the answer alone, mistakes are told before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from loadmaster.cli.verbs import app
from loadmaster.papers.regal2020 import RegalTrainingSettings
from tests.end_to_end.conftest import parsed

runner = CliRunner()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[RegalTrainingSettings]:
    """What the trainer was called with; in its place, one that writes its files and learns nothing."""
    made: list[RegalTrainingSettings] = []

    def stand_in(settings: RegalTrainingSettings) -> Path:
        made.append(settings)
        print("step 1")
        out = Path(settings.out)
        out.mkdir()
        (out / "card.json").write_text(json.dumps({"policy": settings.policy}) + "\n")
        (out / "weights").touch()
        return out / "weights"

    monkeypatch.setattr("loadmaster.papers.training.train", stand_in)
    return made


def test_options_reach_the_trainer(folder: Path, calls: list[RegalTrainingSettings]) -> None:
    words = "lab train gas --corpus c.jsonl --out here --valid v.jsonl --set steps=3 --set graphs=4 --minutes 0.5"
    result = runner.invoke(app, [*words.split(), "--workers", "2", "--seed", "5", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "here/weights" in result.stdout and "here/card.json" in result.stdout
    (got,) = calls
    assert (got.policy, got.corpus, got.out, got.valid) == ("gas", "c.jsonl", "here", "v.jsonl")
    assert (got.steps, got.graphs, got.minutes, got.workers, got.seed, got.device) == (3, 4, 0.5, 2, 5, "cpu")


def test_what_is_not_given_is_as_the_help_says(folder: Path, calls: list[RegalTrainingSettings]) -> None:
    assert runner.invoke(app, ["lab", "train", "regal", "--out", "here"]).exit_code == 0
    assert calls == [RegalTrainingSettings("zoo,generated", "here")]


def test_a_setting_that_is_none_is_told(folder: Path) -> None:
    for word, says in (("stepz=3", "stepz"), ("steps", "sets nothing"), ("steps=many", "many")):
        result = runner.invoke(
            app, ["lab", "train", "regal", "--corpus", "c", "--out", "here", "--json", "--set", word]
        )
        error = parsed(result.stdout)["error"]
        assert result.exit_code == 1 and says in error["what"] and error["fix"], error


def test_json_is_the_card_alone(folder: Path, calls: list[RegalTrainingSettings]) -> None:
    result = runner.invoke(app, ["lab", "train", "regal", "--corpus", "c.jsonl", "--out", "here", "--json"])
    assert parsed(result.stdout) == {"policy": "regal"}
    assert "step 1" in result.stderr


def test_mistakes_are_told(folder: Path) -> None:
    (folder / "empty.jsonl").touch()
    (folder / "torn.jsonl.xz").write_bytes(b"no xz")
    (folder / "file").touch()
    for corpus, out, says in (
        ("none.jsonl", "here", "none.jsonl"),
        ("empty.jsonl", "here", "no graph to learn from"),
        ("torn.jsonl.xz", "here", "not a whole xz file"),
        ("empty.jsonl", "file", "not a folder"),
    ):
        result = runner.invoke(app, ["lab", "train", "regal", "--corpus", corpus, "--out", out, "--json"])
        error = parsed(result.stdout)["error"]
        assert result.exit_code == 1 and says in error["what"] and error["fix"], error
        assert not (folder / "here").exists()


@pytest.mark.parametrize("words", [("placeto",), ("nobody", "--corpus", "c", "--out", "o")])
def test_wrong_usage_is_exit_2(words: tuple[str, ...]) -> None:
    assert runner.invoke(app, ["lab", "train", *words]).exit_code == 2
