"""loadmaster lab generate: random graphs in a file that the other verbs read."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.files import load_graphs
from loadmaster.zoo.synthetic import generate
from tests.end_to_end.conftest import parsed

runner = CliRunner()


def test_writes_as_many_graphs_as_asked_for(folder: Path) -> None:
    words = ["lab", "generate", "layered", "--count", "3", "--seed", "7", "--ops", "20-30", "--out", "graphs.jsonl.gz"]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "3 graphs" in result.stdout and "graphs.jsonl.gz" in result.stdout
    written = [graph.digest for graph in load_graphs(folder / "graphs.jsonl.gz")]
    assert written == [graph.digest for graph in generate("layered", 3, 7, (20, 30))]


def test_one_of_them_can_be_planned(folder: Path) -> None:
    runner.invoke(app, ["lab", "generate", "erdos-renyi", "--count", "2", "--ops", "12", "--out", "g.jsonl"])
    words = ["plan", "g.jsonl#2", "--on", "regal", "--method", "heft", "--simulations", "5", "--json"]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert parsed(result.stdout)["graph"]["name"] == "erdos-renyi/0/1"


def test_json_answer(folder: Path) -> None:
    words = ["lab", "generate", "watts-strogatz", "--count", "2", "--out", "g.jsonl.gz", "--json"]
    answer = parsed(runner.invoke(app, words).stdout)
    assert answer["file"] == "g.jsonl.gz" and answer["kind"] == "watts-strogatz" and answer["count"] == 2


def test_mistakes_are_told(folder: Path) -> None:
    for words, hint in (
        (["lab", "generate", "ring", "--out", "g.jsonl"], "erdos-renyi"),
        (["lab", "generate", "layered", "--out", "missing/g.jsonl"], "make it first"),
        (["lab", "generate", "layered", "--ops", "5-x", "--out", "g.jsonl"], "50-200"),
        (["lab", "generate", "layered", "--ops", "9-8", "--out", "g.jsonl"], "lower number first"),
        (["lab", "generate", "layered", "--out", "g.txt"], ".jsonl"),
    ):
        result = runner.invoke(app, words)
        assert result.exit_code == 1 and hint in result.stderr, result.output
        assert not list(folder.iterdir())
