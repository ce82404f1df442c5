"""Reading a policy: numbers worked out by another route, doubts, and words for the choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from scipy import stats  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph import GraphBuilder  # noqa: E402
from loadmaster.learn.regal2020.actions import CHOICES, MEANS  # noqa: E402
from loadmaster.learn.regal2020.method import Regal  # noqa: E402
from loadmaster.learn.regal2020.networks import PolicyNetwork  # noqa: E402
from loadmaster.learn.regal2020.summary import UNSURE, PolicySummary, measures_of, summarise_policy  # noqa: E402
from loadmaster.papers.features import features_of  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search  # noqa: E402
from tests.unit.report.subjects import training_like  # noqa: E402

CLUSTERS = ("1xp100-pcie", "regal", "2xp100-pcie+1xcpu", "placeto-4")


def problem_on(cluster: str, ops: int = 90) -> Problem:
    return price(training_like(ops), cluster, objective="peak-memory")


def saved(path: Path, certainty: float = 1.0, picked: tuple[int, ...] | None = None) -> str:
    """A policy with random weights; its device scores times `certainty`, its choices the given ones if any."""
    torch.manual_seed(7)
    network = PolicyNetwork(CHOICES, "graph")
    with torch.no_grad():
        network.shift[-1].weight.normal_(0, 1.0)
        network.pair[-1].weight.mul_(certainty)
        network.pair[-1].bias.mul_(certainty)
        for at, start in zip(picked or (), np.cumsum([0, *CHOICES[:-1]]).tolist(), strict=False):
            network.choose[-1].bias[start + at] = 3.0
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    save_file(tensors, str(path), {"policy": json.dumps({"network": "graph", "choices": list(CHOICES)})})
    return str(path)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    return saved(tmp_path / "mine.safetensors", certainty=8.0, picked=(4, 1, 3, 2, 1, 4, 0))


@pytest.fixture(params=CLUSTERS)
def reading(request: Any, policy: str) -> PolicySummary:
    return summarise_policy(problem_on(request.param), policy)


def test_measures_of_a_graph_drawn_by_hand() -> None:
    """a -> b -> d, a -> c -> d, and e reads a alone; w is a weight that b and c read; d updates it in place."""
    g = GraphBuilder("hand")
    x, w = g.tensor(100, "input"), g.tensor(1000, "weight")
    a, b, c, d, e = (g.tensor(size) for size in (10, 20, 30, 40, 50))
    new = g.tensor(1000, "state", alias_of=w)
    g.op("a", "mm", [x], [a], flops=1)
    g.op("b", "mm", [a, w], [b], flops=1, workspace_bytes=7)
    g.op("c", "mm", [a, w], [c], flops=1)
    g.op("d", "mm", [b, c, w], [d, new], flops=1)
    g.op("e", "mm", [a], [e], flops=1)
    problem = price(g.build(), "regal")
    found = measures_of(problem, features_of(problem))
    rows = {name: at for at, name in enumerate(problem.graph.op_name)}
    table = zip(found.nbytes.tolist(), found.resident_bytes.tolist(), found.fan_out.tolist(), found.depth, strict=True)
    assert {name: tuple(row) for name, row in zip(rows, table, strict=True)} == {
        "a": (10, 100, 3, 0),
        "b": (27, 1000, 1, 1),
        "c": (30, 1000, 1, 1),
        "d": (40, 1000, 0, 2),
        "e": (50, 0, 0, 1),
    }


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_it_says_what_the_method_does(cluster: str, policy: str) -> None:
    problem = problem_on(cluster)
    said = summarise_policy(problem, policy).said
    action = Regal(checkpoint=policy).act(features_of(problem), Search(problem, Budget(None, 1), 0))
    np.testing.assert_array_equal(said.mean_level.ravel(), action.mean)
    np.testing.assert_array_equal(said.variance_level.ravel(), action.variance)
    np.testing.assert_array_equal(said.width_level, action.width)
    np.testing.assert_array_equal(said.bias_level, action.bias)
    np.testing.assert_array_equal(np.argsort(said.learned_place), np.argsort(action.place, kind="stable"))
    np.testing.assert_array_equal(said.place, said.learned_place)  # the fixture's policy chooses its own order


def test_chances_doubts_and_leanings(reading: PolicySummary) -> None:
    said, devices = reading.said, len(reading.devices)
    np.testing.assert_allclose(said.chance.sum(axis=1), 1)
    expected = stats.entropy(said.chance, axis=1) / np.log(devices) if devices > 1 else np.zeros(len(said.doubt))
    np.testing.assert_allclose(said.doubt, expected, atol=1e-9)
    order = [reading.devices.index(name) for name in reading.first_to_last]
    scale = [at / max(1, devices - 1) for at in range(devices)]
    np.testing.assert_allclose(said.lean, said.chance[:, order] @ scale, atol=1e-9)
    if devices == 2:
        np.testing.assert_allclose(said.pull, MEANS[said.mean_level[:, 1]], atol=0.05)


def test_relations_against_scipy_and_analysis_of_variance(reading: PolicySummary) -> None:
    columns = {**vars(reading.measures), **vars(reading.said)}
    assert len(reading.relations) == 5 * 4
    for row in reading.relations:
        across, along = columns[row.measure].astype(float), columns[row.action]
        assert sum(part.ops for part in row.bins) == len(along)
        assert all(one.high < two.low for one, two in zip(row.bins, row.bins[1:], strict=False))
        groups = [along[(across >= part.low) & (across <= part.high)] for part in row.bins]
        np.testing.assert_allclose([part.mean for part in row.bins], [group.mean() for group in groups])
        if row.explained is None:
            assert np.ptp(along) < 1e-9
            continue
        within = sum(((group - group.mean()) ** 2).sum() for group in groups)
        assert row.explained == pytest.approx(1 - within / ((along - along.mean()) ** 2).sum())
        if row.correlation is not None:
            assert row.correlation == pytest.approx(stats.spearmanr(across, along).statistic)


def test_it_lists_what_it_is_unsure_of_heaviest_first(policy: str) -> None:
    reading = summarise_policy(problem_on("regal", 300), policy)
    unsure = np.flatnonzero(reading.said.doubt >= UNSURE)
    weight = reading.measures.nbytes + reading.measures.resident_bytes
    assert 20 < len(unsure) < 300 and reading.unsure_ops == len(unsure)
    assert reading.unsure_bytes == pytest.approx(weight[unsure].sum() / weight.sum())
    listed = [reading.op_names.index(row.op) for row in reading.unsure]
    assert set(listed) <= set(unsure.tolist()) and len(listed) == 20
    rest = np.setdiff1d(unsure, listed)
    assert [row.nbytes for row in reading.unsure] == sorted(weight[listed].tolist(), reverse=True)
    assert weight[rest].max() <= weight[listed].min()


@pytest.mark.parametrize(("certainty", "share"), [(0.0, 1.0), (1e4, 0.0)])
def test_even_chances_are_all_doubt_and_sharp_ones_none(tmp_path: Path, certainty: float, share: float) -> None:
    reading = summarise_policy(problem_on("regal"), saved(tmp_path / "p.safetensors", certainty))
    assert reading.unsure_ops / len(reading.op_names) == pytest.approx(share, abs=0.05)


def test_choices_are_told_with_their_chances(tmp_path: Path) -> None:
    path = saved(tmp_path / "p.safetensors", picked=(0, 3, 2, 4, 1, 0, 1))
    choices = {row.name: row for row in summarise_policy(problem_on("regal"), path).choices}
    assert choices["strength"].words.startswith("0% of the way")
    assert "critical-path" in choices["order"].words
    assert choices["elite bias"].words.startswith("70%")
    assert choices["shared affinities"].words == "none, each op has its own"
    assert choices["order"].chance == pytest.approx(np.exp(3) / (np.exp(3) + CHOICES[2] - 1))


def test_a_plan_agrees_with_the_policy_up_to_alike_devices(policy: str) -> None:
    for cluster, exchanged in (("regal", 1.0), ("1xa100-nvlink+1xcpu", 0.0)):
        problem = problem_on(cluster)
        likeliest = summarise_policy(problem, policy).said.chance.argmax(axis=1)
        for device, share in ((likeliest, 1.0), (1 - likeliest, exchanged)):
            agreed = summarise_policy(problem, policy, Plan.of(problem, device)).agreement
            assert agreed is not None
            assert (agreed.ops, agreed.nbytes) == (share, share)


def test_json_is_strict_and_has_a_row_for_every_op(reading: PolicySummary) -> None:
    text = json.dumps(reading.to_json(), allow_nan=False)
    found = json.loads(text)
    assert {len(column) for column in found["ops"].values()} == {len(reading.op_names)}
