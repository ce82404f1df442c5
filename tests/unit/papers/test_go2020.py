"""GO 2020: what each head decides, what each part of the network adds, PPO, and training that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.baselines.lists.schedulers import Heft  # noqa: E402
from loadmaster.catalog.specs import make_method  # noqa: E402
from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import UnreadableFile  # noqa: E402
from loadmaster.files import save_graphs  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.papers import go2020 as paper  # noqa: E402
from loadmaster.papers import go2020_training as learning  # noqa: E402
from loadmaster.papers.go2020_network import TASKS, GoNetwork, GoShape, batch_of, read_problem  # noqa: E402
from loadmaster.papers.methods import Go  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search, solve  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.problems import layers  # noqa: E402
from tests.unit.papers.lanes import brute_force, lanes  # noqa: E402

PARTS = ("embedding", "attention", "modulation")


def branching(seed: int, depth: int = 5) -> Problem:
    return price(layers(3, depth, seed, fusable=True), "2xp100-pcie")


def loud(seed: int = 1, **parts: bool) -> GoNetwork:
    """A network whose heads say something."""
    torch.manual_seed(seed)
    network = GoNetwork(GoShape(hidden=16, **parts))
    for head in (network.fusion_head, network.placement_head, network.schedule_head):
        torch.nn.init.normal_(head.weight, std=2.0)
    return network


def batch_for(count: int = 2, tasks: tuple[str, ...] = TASKS):
    problems = [branching(seed) for seed in range(count)]
    graphs = [read_problem(problem, 32) for problem in problems]
    return problems, graphs, batch_of(graphs, [tasks] * count, [None] * count)


def last_pass(network: GoNetwork, passes: int = 1):
    _, _, batch = batch_for()
    return paper.draw(network, batch, torch.zeros(1), torch.Generator().manual_seed(0), passes).passes[-1]


def likeliest(network: GoNetwork, passes: int = 1):
    return dict(zip(TASKS, last_pass(network, passes).made, strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_zeroing_a_head_changes_the_decisions_of_that_task_and_no_other(task: str) -> None:
    network = loud()
    with torch.no_grad():
        for conditioning in (network.fused, network.placed):  # each task sees the one before: not here
            conditioning.weight.zero_()
            conditioning.bias.zero_()
        before = likeliest(network)
        getattr(network, f"{task}_head").weight.zero_()
        after = likeliest(network)
    assert {name for name in TASKS if not torch.equal(before[name], after[name])} == {task}


@pytest.mark.parametrize(("link", "later"), [("fused", 1), ("placed", 2)])
def test_a_task_sees_what_the_one_before_decided(link: str, later: int) -> None:
    network = loud()
    before = last_pass(network).chance[0]
    with torch.no_grad():
        torch.nn.init.normal_(getattr(network, link).weight, std=5.0)
    after = last_pass(network).chance[0]
    assert torch.equal(before[:later], after[:later]) and not torch.allclose(before[later], after[later], atol=1e-2)


def test_a_second_pass_reads_the_decisions_of_the_first() -> None:
    network = loud()
    assert any(not torch.equal(likeliest(network, 1)[task], likeliest(network, 2)[task]) for task in TASKS)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_network_changes_what_it_decides(part: str) -> None:
    whole = loud()
    without = GoNetwork(replace(whole.shape, **{part: False}))
    without.load_state_dict({name: whole.state_dict()[name] for name in without.state_dict()})
    _, _, batch = batch_for()
    chances = []
    for network in (whole, without):
        torch.nn.init.normal_(network.condition.weight, std=0.5, generator=torch.Generator().manual_seed(0))
        drawn = paper.draw(network, batch, torch.zeros(1), torch.Generator().manual_seed(0))
        chances.append(drawn.passes[-1].chance)
    assert not torch.allclose(*chances, atol=1e-3)


def test_groups_hear_of_the_segment_before_and_not_of_the_one_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.papers.go2020_network.SEGMENT", 4)
    layer = loud().task["placement"]
    there = torch.ones(1, 12, dtype=torch.bool)
    state = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))
    news = state.clone()
    news[0, 5] += torch.linspace(-1, 1, 16)  # in the middle one of three segments
    changed = (layer(state, there) - layer(news, there)).abs().sum(dim=2)[0] > 1e-6
    assert changed.tolist() == [False] * 4 + [True] * 8


def test_padding_changes_nothing() -> None:
    problems = [branching(0, 8), branching(1, 3)]
    graphs = [read_problem(problem, 64) for problem in problems]
    network = loud()
    both = paper.draw(network, batch_of(graphs, [TASKS] * 2, [None] * 2), torch.zeros(1), torch.Generator())
    alone = paper.draw(network, batch_of(graphs[1:], [TASKS], [None]), torch.zeros(1), torch.Generator())
    count = len(graphs[1].ops)
    for one, two in zip(both.passes[-1].made, alone.passes[-1].made, strict=True):
        assert torch.equal(one[1, :count], two[0, :count])


def test_what_is_looked_at_again_is_as_likely_as_when_it_was_drawn() -> None:
    _, _, batch = batch_for()
    network = loud()
    drawn = paper.draw(network, batch, torch.ones(3), torch.Generator().manual_seed(0))
    chance, entropy = paper.look_again(network, batch, drawn)
    torch.testing.assert_close(chance, torch.stack([each.chance for each in drawn.passes]))
    assert chance.shape == (2, 6, 3, batch.there.shape[1]) and (entropy >= 0).all()


def test_the_gradient_raises_the_chance_of_what_gained() -> None:
    """Of two samples the first gained: after steps along PPO's gradient it is likelier, the other is not."""
    _, _, batch = batch_for(1)
    network = loud()
    drawn = paper.draw(network, batch, torch.ones(2), torch.Generator().manual_seed(0))
    adam = torch.optim.Adam(network.parameters(), 1e-5)
    for _ in range(3):
        loss, _ = paper.ppo_loss(network, batch, drawn, torch.tensor([1.0, -1.0]), 0.0)
        adam.zero_grad()
        loss.backward()
        adam.step()
    chance, _ = paper.look_again(network, batch, drawn)
    gained = (chance - torch.stack([each.chance for each in drawn.passes])).sum(dim=(0, 2, 3))
    assert gained[0] > 0 > gained[1]
    silent = [name for name, each in network.named_parameters() if each.grad is None or not each.grad.abs().sum()]
    assert not silent, "every part of the network learns"


def test_priorities_merge_and_priority_zero_does_not() -> None:
    problem = branching(3)
    label = ints(np.arange(problem.num_ops))
    decoder = paper.GoDecoder(problem, label, ("fusion",), Heft().optimize(Search(problem, Budget(None, 9))))
    kernels = []
    for level in (0, 7):
        search = Search(problem, Budget(None, 9))
        same = ints(np.full((1, problem.num_ops), level))
        decoder.score(search, same, ints(np.zeros_like(same)), same)
        assert search.best is not None and decoder.fixed is not None
        np.testing.assert_array_equal(search.best.device, decoder.fixed.device)
        kernels.append(len(np.unique(search.best.kernel)))
    assert kernels[0] == problem.num_ops > kernels[1]


def test_a_plan_that_does_not_fit_is_worth_less_than_any_that_does() -> None:
    problem = branching(0)
    reward = paper.rewards(problem, ints([0, 0, 1, 10**6]), ints([10**4, 10**17, 1, 1]))
    assert (np.diff(reward) < 0).all() and reward[1] == -10.0


def test_the_same_seed_gives_the_same_plan_and_the_budget_is_kept() -> None:
    problem = lanes(5)
    for method in (Go(), Go(finetune=2, rollouts=6), Go(scratch=True, rollouts=10)):
        one, two = (solve(problem, method, Budget(None, 30), seed=4) for _ in range(2))
        np.testing.assert_array_equal(one.plan.device, two.plan.device)
        assert one.simulations == two.simulations <= 30


def test_fine_tuning_is_never_worse_than_zero_shot() -> None:
    for seed in range(2):
        problem = branching(seed)
        shot = solve(problem, Go(), Budget(None, 30), seed=seed)
        tuned = solve(problem, Go(finetune=2, rollouts=10), Budget(None, 30), seed=seed)
        assert tuned.score <= shot.score


def test_go_one_learns_on_its_graph() -> None:
    """The mean of what it draws gets better, and the best is within a twentieth of the best of all placements."""
    problem = lanes(5)
    graph = read_problem(problem, 16)
    decoder = paper.GoDecoder(problem, graph.label, ("placement",))
    batch = batch_of([graph], [("placement",)], [None])
    go, search = Go(rate=5e-3, epochs=2), Search(problem, Budget(None, 10**6))
    network, rng = paper.load_network(replace(go, scratch=True), 0), torch.Generator().manual_seed(0)
    adam, means = paper.Adam(network.parameters(), go.rate), []
    for _ in range(20):
        drawn, reward = paper.keep(network, batch, decoder, search, torch.ones(20), rng)
        advantage = torch.from_numpy(paper.advantages(reward)).float()
        for _ in range(go.epochs):
            adam.descend(paper.ppo_loss(network, batch, drawn, advantage, go.entropy)[0], 1.0)
        means.append(reward.mean())
    assert np.mean(means[-5:]) > np.mean(means[:5])
    assert search.best_score.value <= 1.05 * brute_force(problem)


def test_shipped_weights_were_trained_for_all_three_tasks() -> None:
    network = paper.load_network(Go(), 0)
    for task in TASKS:
        assert getattr(network, f"{task}_head").weight.abs().max() > 1e-3, f"{task} begins at zero"


def test_a_checkpoint_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UnreadableFile, match="loadmaster lab train go"):
        solve(lanes(3), make_method("go:checkpoint=nowhere.safetensors"), Budget(None, 20))


# ---------------------------------------------------------------- training


def settings_for(out: Path, corpus: Path, **more: object) -> learning.GoTrainingSettings:
    few = {"examples": 3, "graphs": 2, "samples": 3, "valid_graphs": 2, "valid_every": 2, "hidden": 16, "groups": 16}
    return learning.GoTrainingSettings(str(corpus), str(out), workers=1, device="cpu", **{**few, **more})  # type: ignore[arg-type]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    save_graphs(generate("layered", 4, 0, (45, 60)), tmp_path / "graphs.jsonl")
    return tmp_path / "graphs.jsonl"


def test_training_goes_on_where_it_was_stopped_and_ends_as_if_it_had_not_been(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learning.train(settings_for(tmp_path / "whole", corpus, steps=4))
    assert "step 2 of 4" in capsys.readouterr().out
    # the rate falls with the share of steps that is done: the same number is told to both halves
    halfway = settings_for(tmp_path / "parts", corpus, steps=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning.GoTraining, "late", lambda run, share: run.state.step >= 2)
        learning.train(halfway)
    weights = learning.train(halfway)
    assert weights.read_bytes() and "goes on from step 2" in capsys.readouterr().out
    one, two = ((tmp_path / each / "checkpoint.safetensors") for each in ("whole", "parts"))
    from safetensors.torch import load_file

    first, second = load_file(one), load_file(two)
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)


def test_families_of_the_workloads_are_held_out(tmp_path: Path, corpus: Path) -> None:
    named = [source for source in learning.sources_of("zoo,generated") if source != "generated"]
    assert "zoo:resnet50/train" in named
    for family in ("rnnlm", "gnmt", "nmt", "transformer-xl", "inception", "amoeba", "nasnet", "wavenet"):
        assert not any(family in source for source in named), family
    assert len(learning.sources_of(str(corpus))) == 4
    other = tmp_path / "other.jsonl"
    other.write_text(corpus.read_text().replace("layered/0/1", "my-lstm"))
    assert len(learning.sources_of(str(other))) == 3 and len(learning.sources_of(str(other), False)) == 4


def test_examples_are_the_same_everywhere_and_of_a_size_to_learn_from() -> None:
    sources = ("generated",)
    for number in range(6):
        example = learning.GoExample(number, sources)
        one = learning.problem_of(example)
        learning.problem_of.cache_clear()
        two = learning.problem_of(example)
        assert one.graph.digest == two.graph.digest and (one.memory_bytes == two.memory_bytes).all()
        assert learning.FEWEST_OPS <= one.num_ops <= learning.MOST_OPS
