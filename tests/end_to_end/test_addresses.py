"""tools simulate --addresses: a place for every tensor that the plan needs, no two in use at once on one byte."""

from __future__ import annotations

from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster import load, price
from loadmaster.cli.verbs import app
from loadmaster.cluster import Cluster
from loadmaster.files import load_plan, save_cluster, save_graph
from tests.end_to_end.conftest import parsed
from tests.graphs.tiny import pair, shared_weight


def simulated(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(
        app, ["tools", "simulate", *words, "--plan", "plan.json", "--addresses", "at.json", "--json"]
    )
    assert result.exit_code == code, result.output
    return parsed(result.stdout)


def saved_plan(model: str, cluster: str, *words: str) -> None:
    done = CliRunner().invoke(
        app, ["plan", model, "--on", cluster, "--simulations", "20", "--save", "plan.json", *words]
    )
    assert done.exit_code == 0, done.output


def assert_apart(rows: list[dict[str, Any]]) -> None:
    for one, two in combinations([row for row in rows if row["bytes"]], 2):
        lives = [(row["from_ns"], inf if row["to_ns"] is None else row["to_ns"]) for row in (one, two)]
        together = max(lives[0][0], lives[1][0]) < min(lives[0][1], lives[1][1])
        if one["device"] == two["device"] and together:
            ends = [(row["offset"], row["offset"] + row["bytes"]) for row in (one, two)]
            assert ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0], (one, two)


@pytest.mark.parametrize("words", [("--method", "heft"), ("--method", "round-robin"), ("--fusion", "greedy")])
def test_every_tensor_an_op_needs_has_a_place_of_its_own(model: str, folder: Path, words: tuple[str, ...]) -> None:
    saved_plan(model, "2xp100-pcie", *words)
    found = simulated(model, "--on", "2xp100-pcie")
    written = parsed((folder / "at.json").read_text())
    assert_apart([*written["tensors"], *written["workspaces"]])
    placed = {(row["tensor"], row["device"]) for row in written["tensors"]}
    problem, plan = price(load(model), "2xp100-pcie"), load_plan(folder / "plan.json")
    graph = problem.graph
    for op in range(problem.num_ops):
        for tensor in graph.reads_of(op):
            maker = graph.producer[tensor]
            if maker < 0 or plan.kernel[maker] != plan.kernel[op]:
                assert (int(tensor), int(plan.device[op])) in placed
    for device, size in enumerate(found["arena_bytes"]):
        tops = [row["offset"] + row["bytes"] for row in written["tensors"] if row["device"] == device]
        assert max(tops, default=0) == size == written["arenas"][device]["arena_bytes"]


def test_the_answer_has_arena_over_peak_for_each_device(model: str) -> None:
    saved_plan(model, "2xp100-pcie", "--method", "one-device")
    found = simulated(model, "--on", "2xp100-pcie")
    used, idle = found["peak_bytes"]
    assert used > 0 == idle
    assert found["arena_over_peak"] == [found["arena_bytes"][0] / used, None]
    assert found["arena_over_peak"][0] >= 1 and found["arena_bytes"][1] == 0
    text = CliRunner().invoke(
        app, ["tools", "simulate", model, "--on", "2xp100-pcie", "--plan", "plan.json", "--addresses", "at.json"]
    )
    assert "addresses written to at.json" in text.stdout and "times its peak" in text.stdout


def test_what_is_written_in_place_has_the_address_of_what_it_is_written_over(folder: Path) -> None:
    save_graph(shared_weight(), folder / "model.json")
    save_cluster(pair(), folder / "pair.json")
    saved_plan("model.json", "pair.json", "--method", "round-robin")
    simulated("model.json", "--on", "pair.json")
    rows = parsed((folder / "at.json").read_text())["tensors"]
    over = [row for row in rows if row["in_place_of"] is not None]
    assert over, "the weight is updated in place"
    graph = price(load("model.json"), Cluster.load("pair.json")).graph
    for row in over:
        under = next(r for r in rows if (r["tensor"], r["device"]) == (row["in_place_of"], row["device"]))
        assert graph.alias_of[row["tensor"]] == row["in_place_of"]
        assert (row["offset"], row["bytes"]) == (under["offset"], under["bytes"])
    assert len({(row["tensor"], row["device"]) for row in rows}) == len(rows)


def test_nothing_is_written_for_a_plan_that_does_not_fit(model: str, folder: Path) -> None:
    saved_plan(model, "2xp100-pcie", "--method", "heft")
    found = simulated(model, "--on", "2xp100-pcie", "--memory-limit", "10MiB", code=3)
    assert "arena_bytes" not in found and not (folder / "at.json").exists()


def test_a_place_that_cannot_be_written_is_told_first(model: str) -> None:
    words = [
        "tools",
        "simulate",
        model,
        "--on",
        "2xk80",
        "--plan",
        "none.json",
        "--addresses",
        "no/such/folder/at.json",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and "folder" in result.stderr and "none.json" not in result.stderr
