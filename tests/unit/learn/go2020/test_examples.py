"""Examples for GO: what is left out, that they are the same everywhere, and that their elites are good."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.files import graph_to_json
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import drawing, examples
from loadmaster.learn.go2020.examples import DRAWN, GoKey
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.plans import Plan, check
from loadmaster.simulator import simulate
from loadmaster.zoo import ENTRIES
from loadmaster.zoo.synthetic import generate


@pytest.fixture(autouse=True)
def _no_corpus() -> None:
    examples.forget_graphs()


def line(name: str, family: str = "f", model: str = "m") -> bytes:
    return json.dumps({"name": name, "family": family, "model": model, "ops": ["lstm"]}).encode()


@pytest.mark.parametrize(
    "name",
    [
        *("rnnlm", "GNMT_8", "opus-mt-marian", "transfo-xl-wt103", "xlnet-base-cased", "inception_resnet_v2"),
        *("googlenet", "amoebanet-d", "nasnetalarge", "S-ViPNAS-Res50", "wavenet_vocoder", "a/GRU", "awd_lstm"),
    ],
)
def test_families_of_the_measured_workloads_are_left_out(name: str) -> None:
    for where in (line(name), line("x", name), line("x", "y", name)):
        assert examples.is_held_out(where)


@pytest.mark.parametrize("name", ["resnet50", "XLMR-ENIS", "yolo11l", "distilbart-mnli", "vit_clip_224.datacompxl"])
def test_other_graphs_are_learned_from(name: str) -> None:
    assert not examples.is_held_out(line(name))


def test_every_measured_family_of_the_zoo_is_held_out() -> None:
    names = [name for name in ENTRIES if name.startswith(("rnnlm", "gnmt", "transformer-xl", "inception", "wavenet"))]
    names += [name for name in ENTRIES if name.startswith("amoebanet")]
    assert len(names) >= 12
    assert all(examples.is_held_out(line(name)) for name in names)


def test_lines_of_a_corpus_are_numbered_behind_those_before(tmp_path: Path) -> None:
    rows = [graph_to_json(graph) for graph in generate("layered", 3, 0, (70, 80))]
    path = tmp_path / "graphs.jsonl"
    names = ["one", "inception_v3", "three"]
    text = "".join(json.dumps({**row, "name": n, "model": n}) + "\n" for row, n in zip(rows, names, strict=True))
    path.write_text(text)
    assert examples.read_graphs(path)[0] == [0, 2]
    assert examples.read_graphs(path)[0] == [3, 5]
    assert examples.make_problem(GoKey(5, 1)).num_ops == len(rows[2]["ops"])


def test_an_example_is_the_same_from_its_key_alone() -> None:
    key = GoKey(DRAWN, 11)
    one = examples.make_problem(key)
    examples.forget_graphs()
    two = examples.make_problem(key)
    assert one is not two
    assert one.source.digest == two.source.digest
    np.testing.assert_array_equal(one.op_ns, two.op_ns)
    np.testing.assert_array_equal(one.memory_bytes, two.memory_bytes)


def test_clusters_vary_and_memory_binds_in_some() -> None:
    many = [examples.make_problem(GoKey(DRAWN, seed)) for seed in range(60)]
    counts = {problem.num_devices for problem in many}
    assert min(counts) == 2
    assert max(counts) == 8
    unlike = [bool((p.op_ns != p.op_ns[:, :1]).any()) for p in many]
    assert 10 < sum(unlike) < 50
    tight = [problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum() for problem in many]
    assert 10 < sum(map(bool, tight)) < 40


def test_a_branching_step_trains_its_weights() -> None:
    graph = drawing.branching_step(np.random.default_rng(3))
    updated = graph.alias_of[(graph.alias_of >= 0) & (graph.producer >= 0)]
    weights = np.flatnonzero([role == 0 for role in graph.role]) if 0 in graph.role[updated] else updated
    assert len(updated) > 10
    assert len(set(updated.tolist())) == len(updated) <= len(weights)
    assert len({name[0] for name in graph.op_name} & set("fbwu")) == 4


def test_elites_fit_beat_the_plain_methods_and_come_back_from_a_file(tmp_path: Path) -> None:
    keys = [GoKey(DRAWN, seed) for seed in range(3)]
    elites = [examples.find_elite(key, 250) for key in keys]
    assert any(elite is not None for elite in elites)
    for key, elite in zip(keys, elites, strict=True):
        if elite is not None:
            problem = examples.make_problem(key)
            assert elite.value < elite.plain.min()
            for candidate, device, turn, reached in zip(
                elite.candidate, elite.device, elite.turn, elite.reached, strict=True
            ):
                plan = Plan.of(problem, device, turn)
                check(plan, problem)
                assert simulate(problem, plan).step_ns <= 1.02 * reached <= 1.02 * elite.candidate_value[candidate]
    examples.save_elites(tmp_path / "e.npz", [*keys, GoKey(0, 1)], [*elites, None])
    back = examples.load_elites(tmp_path / "e.npz")
    assert list(back) == [*keys, GoKey(0, 1)]
    assert back[GoKey(0, 1)] is None
    for key, elite in zip(keys, elites, strict=True):
        loaded = back[key]
        assert (loaded is None) == (elite is None)
        if elite is not None and loaded is not None:
            for column in ("slot", "candidate_value", "plain", "candidate", "device", "turn", "reached"):
                np.testing.assert_array_equal(getattr(loaded, column), getattr(elite, column))


def test_what_gained_nothing_is_undone() -> None:
    key = next(key for seed in range(9) if examples.suits(key := GoKey(DRAWN, seed)))
    problem, rng = examples.make_problem(key), np.random.default_rng(0)
    device = ints(np.zeros(problem.num_ops))
    rank = critical_rank(problem, device)
    best, order = examples.improved(problem, device, rank, 60, rng)
    reached = simulate(problem, Plan.of(problem, best, order)).step_ns
    for piece in examples.changed_pieces(problem, device, best):
        undone = best.copy()
        undone[piece] = device[piece]
        assert simulate(problem, Plan.of(problem, undone, order)).step_ns > reached


def test_keys_repeat_lines_only_with_other_seeds() -> None:
    keys = examples.example_keys([3, 5, 8], 40, 1)
    assert len(set(keys)) == len(keys) == 40
    assert keys[:17] == examples.example_keys([3, 5, 8], 17, 1)
    assert {key.line for key in keys} == {DRAWN, 3, 5, 8}


def test_worth_of_what_does_not_fit_where_there_is_next_to_no_memory() -> None:
    for memory, worth in ((0, 800), (1, 800), (2, 600), (4, 500)):
        problem: Any = SimpleNamespace(memory_bytes=np.array([memory, 0]))
        assert examples.worth(problem, ints([1, 0]), ints([100, 100])).tolist() == [worth, 100]
