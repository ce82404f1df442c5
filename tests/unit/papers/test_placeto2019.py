"""Placeto 2019: its decision process, every part of its network, its baselines, and training that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import LoadmasterError  # noqa: E402
from loadmaster.files import save_graph, save_graphs  # noqa: E402
from loadmaster.graph.columns import Ints, ints  # noqa: E402
from loadmaster.importers import load  # noqa: E402
from loadmaster.papers import placeto2019 as paper  # noqa: E402
from loadmaster.papers.decoding import critical_ranks  # noqa: E402
from loadmaster.papers.environment import Simulated  # noqa: E402
from loadmaster.papers.methods import Placeto  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.search import Budget, Search, solve  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from tests.unit.papers.lanes import brute_force, lanes  # noqa: E402

SMALL = Placeto(by="op", groups=16, checkpoint="none", rate=3e-3)


def scene(count: int = 3, slow: int = 1) -> tuple[paper.PlacetoBoard, Simulated, Ints]:
    problem = lanes(count, slow=slow)
    label = ints(np.arange(problem.num_ops))
    environment = Simulated(Search(problem, Budget(None, 10**6)), label)
    board = paper.board_of(problem, label, "topological", np.random.default_rng(0))
    return board, environment, ints(np.zeros(problem.num_ops))


def loud(board: paper.PlacetoBoard, **settings: object) -> paper.PlacetoPolicy:
    network = paper.PlacetoPolicy(board.able.shape[1], **settings)  # type: ignore[arg-type]
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, 0.1, 0.4)
    return network


def test_an_episode_comes_to_each_group_once_and_its_costs_are_those_of_the_placements_on_its_way() -> None:
    board, environment, start = scene()
    played = paper.play(loud(board), board, environment, start, 3, np.random.default_rng(0))
    assert sorted(board.order.tolist()) == list(range(7))
    problem = environment.problem
    for episode in range(3):
        place = start.copy()
        for step, group in enumerate([-1, *board.order.tolist()]):
            if group >= 0:
                place[group] = played.actions[episode, step - 1]
            rank = critical_ranks(problem, ints(place[None]))[0]
            wanted = simulate(problem, Plan.of(problem, place, rank)).step_ns / environment.unit_ns
            assert played.cost[episode, step] == pytest.approx(wanted)


def test_advantages_compare_episodes_step_by_step_and_have_one_size() -> None:
    cost = np.array([[5.0, 4.0, 4.5, 2.0], [5.0, 6.0, 3.5, 3.0], [5.0, 5.0, 5.0, 4.0]])
    gained = paper.advantages(cost)
    np.testing.assert_allclose(gained.sum(axis=0), 0, atol=1e-9)
    assert gained[0, 0] > gained[1, 0] > gained[2, 0] and gained.std() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(gained, paper.advantages(100 * cost), atol=1e-4)
    assert gained[1, 1] > gained[0, 1], "from the second step on the second episode gained three, the first two"


@pytest.mark.parametrize("seen", range(7))
def test_the_policy_reads_every_column_of_a_group(seen: int) -> None:
    """Time, output bytes, done, current, start time, and the device of the moment."""
    board, _, start = scene()
    network = loud(board)
    place = np.tile(start, (1, 1))
    nodes = paper.node_features(board, place, ints(np.arange(7)[None] * 50), torch.zeros(7), 2)
    changed = nodes.clone()
    changed[0, :, seen] += torch.linspace(0.5, 1.0, 7)
    group = torch.tensor([2])
    assert not torch.allclose(network(board, nodes, group), network(board, changed, group), atol=1e-4)


@pytest.mark.parametrize(
    ("rounds", "far", "heard"), [(0, False, False), (1, False, True), (1, True, False), (8, True, True)]
)
def test_messages_go_one_edge_a_round(rounds: int, far: bool, heard: bool) -> None:
    """Groups 0 → 1 → 6 (the join): one round carries news of 0 to 1, two to 6."""
    board, _, _ = scene()
    network = loud(board, rounds=rounds)
    nodes = torch.zeros(1, 7, 7)
    news = nodes.clone()
    news[0, 0, 0] = 1.0
    at = 6 if far else 1
    one, two = network.embed(board, nodes)[0, at], network.embed(board, news)[0, at]
    assert (not torch.allclose(one, two, atol=1e-6)) == heard


def test_up_and_down_have_parameters_of_their_own_and_so_have_the_three_pools() -> None:
    board, environment, start = scene()
    torch.manual_seed(0)
    network = paper.PlacetoPolicy(2)
    played = paper.play(network, board, environment, start, 4, np.random.default_rng(0))
    with torch.no_grad():
        network.head[-1].weight.normal_()  # it begins at zero, which would stop all else
    loss, _ = paper.reinforce(network, board, played, np.linspace(-1, 1, 28).reshape(4, 7), 0.0)
    loss.backward()
    parts = [*network.ways, *network.kin, network.own, network.head]
    assert len({id(p) for part in parts for p in part.parameters()}) == sum(len(list(x.parameters())) for x in parts)
    for part in parts:
        assert all(p.grad is not None for p in part.parameters())
        assert any(p.grad.abs().sum() > 0 for p in part.parameters()), part


def test_pools_tell_ancestors_from_parallel_groups() -> None:
    board, _, _ = scene()
    nodes = torch.zeros(2, 7, 7)
    nodes[0, 0, 0] = nodes[1, 2, 0] = 1.0  # of group 1, group 0 is an ancestor and 2 is parallel
    group = torch.tensor([1, 1])
    for pools, apart in (("three", True), ("one", False)):
        says = loud(board, rounds=0, pools=pools)(board, nodes, group)
        if apart:
            assert not torch.allclose(says[0], says[1], atol=1e-5)
    board.related[0].zero_()  # without ancestors nothing of group 0 is heard
    deaf = loud(board, rounds=0)
    assert torch.allclose(deaf(board, nodes[:1], group[:1]), deaf(board, torch.zeros(1, 7, 7), group[:1]))


def test_learning_beats_the_same_policy_untrained() -> None:
    """One device is ten times as fast, and episodes start on the other one."""
    board, environment, _ = scene(2, slow=10)
    start = ints(np.ones(5))
    ends = {}
    for rate in (0.0, 1e-2):
        torch.manual_seed(0)
        network = paper.PlacetoPolicy(2)
        adam = torch.optim.Adam(network.parameters(), rate)
        for step in range(40):
            played = paper.play(network, board, environment, start, 8, np.random.default_rng(step))
            loss, _ = paper.reinforce(network, board, played, paper.advantages(played.cost), 0.0)
            adam.zero_grad()
            loss.backward()
            adam.step()
        ends[rate] = played.cost[:, -1].mean()
    assert ends[1e-2] < 0.5 * ends[0.0], ends


def test_finds_the_optimum_of_a_few_lanes_within_the_budget() -> None:
    result = solve(lanes(4), SMALL, Budget(None, 1_500))
    assert result.simulations <= 1_500 and result.value == brute_force(lanes(4))
    tight = solve(lanes(4, memory_bytes=250), replace(SMALL, tune=False), Budget(None, 300))
    assert tight.simulations <= 300 and tight.fits


def folder_of_graphs(folder: Path) -> Path:
    folder.mkdir()
    for count in (3, 4, 5):
        save_graph(lanes(count).graph, folder / f"lanes-{count}.json")
    return folder


def test_training_goes_on_where_it_was_killed_and_its_weights_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = str(folder_of_graphs(tmp_path / "graphs"))
    given = {"episodes": 3, "steps": 4, "valid_every": 2, "device": "cpu"}
    whole = paper.train(paper.PlacetoTrainingSettings(graphs, str(tmp_path / "a"), **given))  # type: ignore[arg-type]
    with monkeypatch.context() as killed:
        killed.setattr(paper.PlacetoTraining, "late", lambda run, share: run.state.step >= 2)
        paper.train(paper.PlacetoTrainingSettings(graphs, str(tmp_path / "b"), **given))  # type: ignore[arg-type]
    again = paper.train(paper.PlacetoTrainingSettings(graphs, str(tmp_path / "b"), **given))  # type: ignore[arg-type]
    one, two = (load_file(str(path.parent / "checkpoint.safetensors")) for path in (whole, again))
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)
    found = solve(lanes(4), replace(SMALL, checkpoint=str(whole), tune=False, samples=2), Budget(None, 60))
    assert found.simulations <= 60
    with pytest.raises(LoadmasterError, match="places on 2 devices"):
        paper.load_network(replace(SMALL, checkpoint=str(whole)), 3, 0)


def test_learns_from_a_file_of_graphs_and_leaves_out_what_it_cannot_play(tmp_path: Path) -> None:
    save_graphs([lanes(count).graph for count in (2, 3, 4)], tmp_path / "some.jsonl")
    settings = paper.PlacetoTrainingSettings(str(tmp_path / "some.jsonl"), str(tmp_path / "out"), device="cpu")
    learn, apart = paper.tasks_of(settings)
    assert learn and apart and len(learn) <= 3
    with pytest.raises(LoadmasterError, match="no graph of the corpus"):
        paper.tasks_of(replace(settings, families="nothing"))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LoadmasterError):
        paper.PlacetoTrainingSettings("graphs", "here", episodes=1)


def test_shipped_weights_place_a_model_of_their_families_in_one_episode() -> None:
    problem = price(load("zoo:nmt-family/7/train"), "placeto-2")
    found = solve(problem, "placeto:tune=no,samples=0,checkpoint=shipped", Budget(None, 100))
    assert found.simulations <= 40 and found.value < solve(problem, "expert", Budget(None, 1)).value
