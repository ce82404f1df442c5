"""A search is a method, and an optimizer updates weights: the old words are refused with the new ones, and files that
were written with the old words (`tests/golden/before_methods`, by the version before) are still read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import loadmaster as lm
from loadmaster.baselines.simple import OneDevice
from loadmaster.bench.best import load_best
from loadmaster.cli.verbs import app
from tests.graphs import GRAPHS

BEFORE = Path(__file__).parents[1] / "golden" / "before_methods"
FEW = lm.Budget(None, 1)


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (("plan", "zoo:gnmt-4", "--with", "heft"), "`--with` is now `--method`"),
        (("compare", "zoo:gnmt-4", "--with=heft,etf"), "`--with` is now `--method`"),
        (("lab", "bench", "zoo", "--with", "heft"), "`--with` is now `--method`"),
        (("bench", "zoo"), "`bench` is now `lab bench`"),
        (("train", "go", "--help"), "`train` is now `lab train`"),
        (("list", "optimizers"), "`list optimizers` is now `tools list methods`"),
        (("simulate", "model.json"), "`simulate` is now `tools simulate`"),
        (("plans", "clear"), "`plans clear` is now `tools forget`"),
    ],
)
def test_old_words_of_the_command_line_name_the_new_ones(words: tuple[str, ...], now: str) -> None:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2 and now in done.stderr


@pytest.mark.parametrize(
    ("given", "fix"), [("heft", "method='heft'"), ("anneal:aim=1", "method="), (OneDevice(), "method=")]
)
def test_a_search_given_as_the_optimizer_is_refused(given: Any, fix: str) -> None:
    with pytest.raises(lm.InvalidSetting, match="updates the weights") as caught:
        lm.plan(GRAPHS["diamond"](), on="2xk80", budget=FEW, optimizer=given)
    assert fix in caught.value.fix


def test_an_optimizer_stands_beside_the_method() -> None:
    found = lm.plan(GRAPHS["diamond"](), on="2xk80", budget=FEW, method="heft", optimizer="sgd")
    assert found.method == "heft"


def test_a_plugin_in_the_old_group_is_told_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "former-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: former\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[loadmaster.optimizers]\nformer-search = former:Search\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(lm.InvalidSetting, match=r"now loadmaster\.methods"):
        lm.make_method("former-search")


def test_a_plan_saved_before_is_explained_with_its_method(says_of: Callable[..., Any]) -> None:
    found = says_of("explain", "plan.json", "--model", "model.json", "--on", "cluster.json", "--seconds", "0.1")
    assert found["method"] == "heft"


def test_a_comparison_saved_before_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = CliRunner().invoke(
        app, ["tools", "plot", str(BEFORE / "compared.json"), "--out", str(tmp_path / "methods.svg")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "methods.svg").stat().st_size > 1000


def test_best_values_saved_before_keep_their_method() -> None:
    (row,) = load_best(BEFORE / "best.json").all
    assert (row.method, row.value) == ("regal", 6952755696)


def test_what_is_saved_now_says_method(tmp_path: Path) -> None:
    lm.plan(BEFORE / "model.json", on=BEFORE / "cluster.json", budget=FEW, method="heft").save(tmp_path / "plan.json")
    now = json.loads((tmp_path / "plan.json").read_text())["result"]
    before = json.loads((BEFORE / "plan.json").read_text())["result"]
    assert now["method"] == before["optimizer"] and "optimizer" not in now
    assert now["step_ns"] == before["step_ns"]


@pytest.fixture
def says_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The JSON of a verb on the files of before."""
    monkeypatch.chdir(BEFORE)

    def said(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return said
