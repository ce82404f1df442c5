"""REGAL 2020: its action becomes genes, every part of its networks counts, and it learns what BRKGA rewards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.files import save_graphs  # noqa: E402
from loadmaster.importers import load  # noqa: E402
from loadmaster.papers import regal2020 as paper  # noqa: E402
from loadmaster.papers.explaining import explain_policy  # noqa: E402
from loadmaster.papers.features import features_of  # noqa: E402
from loadmaster.papers.methods import Regal  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, solve  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402


def problem_of(seed: int = 0, ops: int = 60) -> Problem:
    return price(next(generate("layered", 1, seed, ops)), "regal", objective="peak-memory")


def graph_of(seed: int = 0) -> paper.RegalGraph:
    return paper.read_problem(features_of(problem_of(seed)))


def loud(**settings: str) -> paper.RegalNetwork:
    """A network whose heads say something of everything they read."""
    torch.manual_seed(1)
    network = paper.RegalNetwork(**settings)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, 0, 0.2)
    return network


def said(network: paper.RegalNetwork, graph: paper.RegalGraph) -> torch.Tensor:
    """[ops, all levels]"""
    with torch.no_grad():
        found = network(graph)
    return torch.cat([found.pairs.flatten(1), found.ops], dim=1)


def test_genes_have_the_mean_and_variance_that_the_action_says() -> None:
    problem, rng = problem_of(), np.random.default_rng(0)
    action = paper.random_action(problem, rng)
    _, prior = paper.prior_of_action(problem, action)
    ops, devices = problem.num_ops, problem.num_devices
    edges = np.concatenate([prior.table, np.ones((len(prior.table), 1))], axis=1)  # a draw is even between two edges
    mean = ((edges[:, 1:] + edges[:, :-1]) / 2).mean(axis=1)
    square = ((edges[:, 1:] ** 2 + edges[:, 1:] * edges[:, :-1] + edges[:, :-1] ** 2) / 3).mean(axis=1)
    for op in range(0, ops, 7):
        genes = [(op * devices + device, *action.pairs[op, device]) for device in range(devices)]
        for gene, middle, width in [*genes, (ops * devices + op, *action.ops[op, :2])]:
            row = prior.shape[gene]
            wanted = paper.MEANS[middle]
            assert mean[row] == pytest.approx(wanted, abs=0.01)
            spread = square[row] - mean[row] ** 2
            assert spread == pytest.approx(
                paper.VARIANCES[width] * wanted * (1 - wanted), rel=0.1, abs=3e-3
            )  # the last of 256 cells ends at 1
            assert prior.bias[gene] == pytest.approx(256 * (0.5 + action.ops[op, 2] / 30), abs=1)


def test_untrained_it_is_plain_brkga() -> None:
    problem = problem_of(ops=120)
    budget = Budget(None, 401)
    untrained, plain = (solve(problem, spec, budget, seed=3) for spec in ("regal:checkpoint=none", "brkga-5k"))
    assert untrained.value <= plain.value * 1.1
    action = paper.likeliest_action(paper.RegalNetwork(), graph_of())
    here = problem_of()
    assert paper.reached(here, action, 5, 400) == paper.reached(here, None, 5, 400)


def test_each_network_reads_what_it_is_said_to() -> None:
    graph, other = graph_of(), graph_of(1)
    cut = paper.RegalGraph(graph.ops, graph.devices, graph.pairs, graph.before[:0], graph.after[:0])
    turned = paper.RegalGraph(graph.ops.flip(0), graph.devices, graph.pairs.flip(0), cut.before, cut.after)
    messages, sequence = loud(reads="graph"), loud(reads="sequence")
    assert not torch.allclose(said(messages, graph), said(messages, cut), atol=0.1), "edges count"
    assert torch.allclose(said(sequence, graph), said(sequence, cut)), "a sequence has no edges"
    assert not torch.allclose(said(sequence, cut), said(sequence, turned).flip(0), atol=0.1), "its order counts"
    assert torch.allclose(said(messages, cut), said(messages, turned).flip(0), atol=1e-4), "a graph has no order"
    for network in (messages, sequence):
        assert (said(network, graph).std(dim=0) > 0.1).all(), "every level varies over ops"
    whole, nothing = loud(says="graph"), loud(reads="nothing")
    assert (said(whole, graph).std(dim=0) < 1e-4).all() and not torch.allclose(
        said(whole, graph)[0], said(whole, other)[0], atol=0.1
    )
    assert torch.equal(said(nothing, graph)[0], said(nothing, other)[0])


def test_mean_variance_and_elite_bias_of_the_shipped_weights_vary_over_ops_and_graphs() -> None:
    network, seen = paper.load_network(Regal(), 0), []
    for model in ("resnet50", "gpt2"):
        problem = price(load(f"zoo:{model}/train"), "regal", objective="peak-memory")
        action = paper.likeliest_action(network, paper.read_problem(features_of(problem)))
        columns = (action.pairs[:, :, 0], action.pairs[:, :, 1], action.ops[:, 0], action.ops[:, 2])
        assert all(len(np.unique(column)) > 3 for column in columns)
        seen.append([column.mean() for column in columns])
    assert all(one != two for one, two in zip(*seen, strict=True))
    network.keep_means()
    kept = paper.likeliest_action(network, paper.read_problem(features_of(problem)))
    assert (kept.pairs[:, :, 0] == action.pairs[:, :, 0]).all() and (kept.ops[:, 0] == action.ops[:, 0]).all()
    assert (kept.pairs[:, :, 1] == paper.UNIFORM).all() and (kept.ops[:, 2] == paper.USUAL).all()


def test_reinforce_finds_the_levels_that_are_rewarded() -> None:
    """Ops read from the first half of the program want the first device; all want a large bias."""
    graph, rng = graph_of(), np.random.default_rng(0)
    torch.manual_seed(0)
    network = paper.RegalNetwork()
    adam = torch.optim.Adam(network.parameters(), 3e-3)
    half = len(graph.ops) // 2
    for _ in range(60):
        now = network(graph)
        actions = [paper.draw_action(network, now, rng) for _ in range(8)]
        wanted = [
            float(a.pairs[:half, 0, 0].mean() - a.pairs[half:, 0, 0].mean() + a.ops[:, 2].mean()) for a in actions
        ]
        adam.zero_grad()
        paper.reinforce(paper.level_chances(network, now), actions, np.array(wanted)).backward()
        adam.step()
    action = paper.likeliest_action(network, graph)
    first, second = action.pairs[:half, 0, 0].mean(), action.pairs[half:, 0, 0].mean()
    assert first > second + 3 and action.ops[:, 2].mean() > paper.USUAL + 3


def settings_for(out: Path, corpus: Path, **more: object) -> paper.RegalTrainingSettings:
    few = {"examples": 3, "graphs": 2, "samples": 2, "evaluations": 60, "valid_graphs": 1}
    given = {**few, "hidden": 8, "steps": 4, "device": "cpu", **more}
    return paper.RegalTrainingSettings(str(corpus), str(out), **given)  # type: ignore[arg-type]


def test_training_that_was_stopped_ends_as_if_it_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "graphs.jsonl"
    save_graphs(generate("layered", 3, 0, (45, 60)), corpus)
    paper.train(settings_for(tmp_path / "whole", corpus))
    halfway = settings_for(tmp_path / "halves", corpus)
    with monkeypatch.context() as patch:
        patch.setattr(paper.RegalTraining, "late", lambda run, share: run.state.step >= 2)
        paper.train(halfway)
    weights = paper.train(halfway)
    one, two = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "halves"))
    assert one.keys() == two.keys() and all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
    found = solve(problem_of(), f"regal:checkpoint={weights}", Budget(None, 60))
    assert found.simulations <= 60


def test_most_decisions_of_the_shipped_weights_move_with_what_is_named() -> None:
    told = explain_policy(price(load("zoo:resnet50/train"), "regal", objective="peak-memory"), "regal")
    assert told["tested"] >= 8 and told["held"] >= 0.8 * told["tested"]
