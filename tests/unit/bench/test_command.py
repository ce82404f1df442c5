"""The verb, from words to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster.bench import command
from loadmaster.bench.best import load_best
from loadmaster.bench.command import BenchSettings, bench, bench_best, call, parse_part
from loadmaster.bench.records import RunLedger
from loadmaster.bench.suite import SUITES, Allowance
from loadmaster.cli.verbs import app
from loadmaster.errors import InvalidSetting
from tests.unit.bench.made import tiny_suite

TINY = tiny_suite()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "suites_of", lambda name: [TINY])


def quiet(out: Path, **others: Any) -> BenchSettings:
    return BenchSettings(out=out, say=lambda text: None, **{"specs": ["heft", "random"], "seeds": 2, **others})


@pytest.mark.usefixtures("tiny")
def test_a_suite_leaves_tables_and_a_line_about_the_call(tmp_path: Path) -> None:
    (report,) = bench("tiny", quiet(tmp_path))
    names = {file.name for file in tmp_path.iterdir()}
    kept = {"tiny.jsonl", "tiny.md", "tiny-1.csv", "tiny-2.csv", "calls.jsonl"}
    assert kept <= names
    assert report.outcome.done == 12
    assert "Three tiny graphs" in report.text() and "12 runs" in report.text()
    assert report.as_data()["tables"][0]["rows"][0]["method"] == "one-device"
    call = json.loads((tmp_path / "calls.jsonl").read_text())
    assert call["command"] == "loadmaster lab bench tiny --method heft,random --seeds 2 --simulations 20"
    (again,) = bench("tiny", quiet(tmp_path))
    assert (again.outcome.done, again.outcome.kept) == (0, 12)
    assert again.tables[0].csv() == report.tables[0].csv()


@pytest.mark.usefixtures("tiny")
def test_best_values_are_found_by_long_runs_and_by_results_at_hand(tmp_path: Path) -> None:
    file = tmp_path / "best.json"
    bench("tiny", quiet(tmp_path))
    records = RunLedger(tmp_path / "tiny.jsonl").records
    (report,) = bench_best("tiny", quiet(tmp_path, specs=["anneal"], best=file, allowance=Allowance(simulations=60)))
    best = load_best(file)
    assert len(best) == 3 and "3 are known" in report.notes[-1]
    long = RunLedger(tmp_path / "best-tiny.jsonl").records
    assert {record.spec for record in long} == {"one-device", "anneal"}
    assert all(best.values[record.place] <= record.value for record in [*records, *long])
    known = dict(best.values)
    bench_best("tiny", quiet(tmp_path, specs=["random"], best=file, allowance=Allowance(simulations=5)))
    assert all(load_best(file).values[place] <= value for place, value in known.items())
    assert len(RunLedger(tmp_path / "tiny.jsonl").records) == len(records) == 12
    with pytest.raises(InvalidSetting, match="simulations"):
        bench_best("tiny", quiet(tmp_path, allowance=Allowance(seconds=1.0)))


@pytest.mark.usefixtures("tiny")
def test_words_after_bench(tmp_path: Path) -> None:
    settings = quiet(tmp_path)
    for wrong in ([], ["a", "b"], ["docs", "a"], ["best"], ["best", "a", "b"]):
        with pytest.raises(InvalidSetting):
            call(wrong, settings) if wrong != ["best"] else bench_best("best", settings)


def test_parts_are_written_as_fractions() -> None:
    assert parse_part(None) == (1, 1)
    assert parse_part("2/3") == (2, 3)
    for wrong in ("3/2", "0/2", "2", "a/b", "1/"):
        with pytest.raises(InvalidSetting, match="no part"):
            parse_part(wrong)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["lab", "bench", *words])


def test_the_verb_runs_generated_graphs_and_goes_on(tmp_path: Path) -> None:
    words = ("synthetic-regal", "--method", "one-device,random:samples=4", "--limit", "1", "--seeds", "1")
    budget = ("--simulations", "10", "--out", str(tmp_path))
    first = run(*words, *budget)
    assert first.exit_code == 0, first.output
    assert "layered/0/0" in first.stdout and "3 runs, 0 were finished before" in first.stdout
    again = run(*words, *budget, "--json")
    found = json.loads(again.stdout)["suites"][0]
    assert (found["runs"], found["finished_before"]) == (0, 3)
    assert found["tables"][0]["rows"][0]["method"] == "brkga-5k"


def test_mistakes_are_told_before_any_work(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "new"))
    for words in (("regall",), ("synthetic", "--method", "hefft"), ("synthetic", "--part", "3/2"), ("a", "b")):
        result = run(*words, *out)
        assert result.exit_code == 1 and "fix:" in result.stderr, words
    assert run("synthetic", "--times-baseline", "2", *out).exit_code == 1
    assert not (tmp_path / "new").exists()


def test_every_suite_has_a_baseline_that_exists() -> None:
    from loadmaster.bench.methods import method

    for suite in SUITES.values():
        method(suite.baseline)
        assert suite.specs and suite.title
