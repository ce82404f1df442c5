"""GO's chains of draws: what they stand for is what the simulator says, and the network's scores steer them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.adam import Adam  # noqa: E402
from loadmaster.learn.go2020.chains import CHAINS, DrawPace, Manner, PolicyChains, Sample  # noqa: E402
from loadmaster.learn.go2020.input import GoInput, go_input  # noqa: E402
from loadmaster.learn.go2020.losses import sample_loss  # noqa: E402
from loadmaster.learn.go2020.optimizer import Go  # noqa: E402
from loadmaster.optimizers.annealing import proposals  # noqa: E402
from loadmaster.optimizers.expert.expert import Expert  # noqa: E402
from loadmaster.optimizers.fusion.greedy import Merges  # noqa: E402
from loadmaster.optimizers.fusion.starts import fusing_for, simple_fusions  # noqa: E402
from loadmaster.optimizers.lists.schedulers import Heft  # noqa: E402
from loadmaster.plans import Plan, check  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search  # noqa: E402
from loadmaster.simulator import first_come, simulate  # noqa: E402
from loadmaster.zoo.shelf import load_zoo  # noqa: E402
from tests.reference import judge  # noqa: E402
from tests.strategies import problems  # noqa: E402

PLACING = Manner(placing=True, ordering=True, fusing=False, fifo=False, uniform=0.1)
FUSING = Manner(placing=True, ordering=True, fusing=True, fifo=False, uniform=0.1)
FIFO = Manner(placing=True, ordering=False, fusing=False, fifo=True, uniform=0.1)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(load_zoo("transformer-xl-2"), "4xp100-pcie")


def policy_of(one: GoInput, favoured: int = 0, lead: float = 0.0) -> proposals.Policy:
    place = np.zeros((one.num_groups, one.num_devices))
    place[:, favoured] = lead
    level, fusion = np.zeros((one.num_groups, 20)), np.zeros((len(one.single), 20))
    return proposals.Policy(one.label, place, level, fusion, proposals.chances(fusion), 0.1)


def chains_of(problem: Problem, manner: Manner, budget: int = 400) -> tuple[PolicyChains, GoInput]:
    search = Search(problem, Budget(None, budget), 3)
    one = go_input(problem, 64, kernels=manner.fusing)
    plans = [Expert().optimize(search), Heft().optimize(search)]
    return PolicyChains(search, one, manner, plans if manner.placing else plans[:1]), one


def plan_of(problem: Problem, place: np.ndarray, rank: np.ndarray, kernel: np.ndarray) -> Plan:
    """What a chain says, to be simulated outside of it."""
    kernels = ints(kernel) if len(kernel) else None
    if not len(rank):
        return first_come(problem, ints(place), kernels)
    return Plan.of(problem, ints(place), ints(rank), kernels)


@pytest.mark.parametrize("manner", [PLACING, FUSING, FIFO])
def test_chains_stand_where_the_simulator_says_and_so_does_their_best(problem: Problem, manner: Manner) -> None:
    chains, one = chains_of(problem, manner)
    first = min(int(chain.score[1]) for chain in chains.chains)
    for hot in (0.02, 0.0):
        chains.walk(policy_of(one), lambda hot=hot: hot, None, 150)  # type: ignore[misc]
        for chain in chains.chains:
            best = plan_of(problem, chain.best_place, chain.best_rank, chain.best_kernel)
            assert simulate(problem, best).step_ns == chain.score[3]
    search = chains.search
    assert search.simulations <= 400
    assert search.best is not None
    assert search.best_score.value == simulate(problem, search.best).step_ns < first
    for chain in chains.chains:
        here = plan_of(problem, chain.place, chain.rank, chain.kernel)
        check(here, problem)
        assert simulate(problem, here).step_ns == chain.score[1]


@settings(max_examples=12, deadline=None)
@given(problem=problems(max_ops=10, max_devices=3))
def test_chains_on_problems_of_every_kind_are_legal_and_keep_the_budget(problem: Problem) -> None:
    for manner in (PLACING, FUSING, FIFO):
        chains, one = chains_of(problem, manner, 70)
        chains.walk(policy_of(one), lambda: 0.01, None, 1_000)
        search = chains.search
        assert search.simulations <= 70
        assert search.best is not None
        check(search.best, problem)
        assert search.best_score == judge(problem, search.best).score(problem.objective)


def test_draws_go_where_the_scores_say_and_are_written_down_with_their_chance(problem: Problem) -> None:
    chains, one = chains_of(problem, PLACING)
    sample = chains.walk(policy_of(one, favoured=2, lead=3.0), lambda: 0.0, None, 300)
    devices = sample.kind == proposals.DEVICE
    assert devices.sum() > 30
    assert (sample.pick[devices] == 2).mean() > 0.5
    np.testing.assert_allclose(sample.share.sum(axis=1), 1.0, atol=1e-4)
    spread = 0.9 * np.exp(3.0) / (np.exp(3.0) + 3) + 0.1 / 4
    half = 0.5 * np.exp(3.0) / (np.exp(3.0) + 3)  # where a border or a neighbour suggests a device
    known = np.exp(sample.chance[devices & (sample.pick == 2)])
    assert all(min(abs(chance - said) for said in (spread, half, half + 0.5)) < 1e-6 for chance in known)
    assert (sample.gain >= 0).all()
    assert (sample.gain > 0).any()


def test_the_loss_of_a_sample_raises_the_chance_of_what_gained() -> None:
    share = np.zeros((3, 5), np.float32)
    share[0, :2], share[1, 2], share[2, 4] = 0.5, 1.0, 1.0
    kind, pick = ints([0, 0, 1]), ints([1, 0, 7])
    chance = np.log([1 / 3, 1 / 3, 1 / 20])
    sample = Sample(kind, share, pick, chance, np.array([0.02, 0.0, 0.0]))
    place, level = torch.zeros(1, 5, 3, requires_grad=True), torch.zeros(1, 5, 20, requires_grad=True)
    loss = sample_loss((place, level), sample)
    gain = (sample.gain - sample.gain.mean()) / (sample.gain.std() + 1e-4)
    assert float(loss.detach()) == pytest.approx(-gain[:2].mean() - gain[2], abs=1e-5)
    loss.backward()
    assert place.grad is not None
    assert level.grad is not None
    assert (place.grad[0, :2, 1] < 0).all()  # descending makes it likelier
    assert place.grad[0, 2, 0] > 0
    assert level.grad[0, 4, 7] > 0
    assert place.grad[0, 3].abs().sum() == 0


def test_fusion_starts_from_the_best_of_simple_rules(problem: Problem) -> None:
    plan = Expert().optimize(Search(problem, Budget(None, 1)))
    for fifo in (False, True):
        search = Search(problem, Budget(None, 60))
        (kernels, score), (_, second) = simple_fusions(search, plan, 2, fifo)
        assert score <= second
        chosen = ints(kernels.kernel)
        merges = Merges.of(problem)
        all_merged = ints(merges.kernels(plan.device, np.ones(problem.num_ops))[0])
        for other in (chosen, merges.greedy(plan.device), all_merged):
            whole = first_come(problem, plan.device, other)
            whole = whole if fifo else Plan.of(problem, plan.device, plan.rank, other)
            assert simulate(problem, whole).step_ns >= score.value
        assert search.best is not None
        np.testing.assert_array_equal(search.best.kernel, chosen)
        assert ((kernels.priority == -1) | ((kernels.priority >= 1) & (kernels.priority < 20))).all()
        heads = kernels.sequence[kernels.sequence >= 0]
        assert sorted(heads.tolist()) == np.unique(chosen).tolist()


def test_where_devices_stay_only_pairs_that_are_together_are_drawn(problem: Problem) -> None:
    merges, device = Merges.of(problem), Expert().optimize(Search(problem, Budget(None, 1))).device
    whole, some = fusing_for(problem, 1)[0], fusing_for(problem, 1, device)[0]
    assert whole.pairs.tolist() == list(range(len(merges.producers)))
    ends = zip(merges.producers.tolist(), merges.consumers.tolist(), strict=True)
    together = [pair for pair, (maker, reader) in enumerate(ends) if device[maker] == device[reader]]
    assert 0 < len(together) < len(whole.pairs)
    assert some.pairs.tolist() == sorted(set(some.alike.tolist())) == together
    assert [some.pairs[at] for at in some.index if at >= 0] == together


def test_chains_that_fuse_alone_keep_devices_and_order_and_gain() -> None:
    problem = price(load_zoo("wavenet-2x18"), "4xp100-pcie")  # where simple rules leave something
    manner = Manner(placing=False, ordering=False, fusing=True, fifo=False, uniform=0.1)
    chains, one = chains_of(problem, manner)
    before = [(chain.place.copy(), chain.rank.copy(), int(chain.score[3])) for chain in chains.chains]
    sample = chains.walk(policy_of(one), lambda: 1e-3, None, 300)
    for chain, (place, rank, value) in zip(chains.chains, before, strict=True):
        np.testing.assert_array_equal(chain.best_place, place)
        np.testing.assert_array_equal(chain.best_rank, rank)
        plan = plan_of(problem, place, rank, chain.best_kernel)
        assert simulate(problem, plan).step_ns == chain.score[3] < value
    assert (sample.kind == proposals.FUSION).all()
    evenly = 0.9 / 20 + 0.1 / 20
    known = (evenly, 0.5 / 20, 0.5 / 20 + 0.5)  # the others: where a pair might part or join
    assert all(min(abs(chance - said) for said in known) < 1e-6 for chance in np.exp(sample.chance))


def test_adam_steps_as_that_of_torch_does() -> None:
    mine, theirs = (torch.full((3,), 2.0, requires_grad=True) for _ in range(2))
    ours, other = Adam([mine], 0.1), torch.optim.Adam([theirs], lr=0.1)
    for step in range(5):
        for adam, column in ((ours, mine), (other, theirs)):
            adam.zero_grad()
            (column * torch.tensor([1.0, -3.0, step])).sin().sum().backward()
            adam.step()
    torch.testing.assert_close(mine, theirs)


def test_the_pace_shares_time_between_network_and_draws(problem: Problem) -> None:
    timed = DrawPace(Search(problem, Budget(1_000.0)), Go(scratch=True, share=0.75), None, 0.01)
    timed.network_s = [0.1, 0.3]
    assert timed.next(5, 0.01) == (pytest.approx(1.2), 2**31)
    assert timed.next(5, 0.001) == (pytest.approx(3.6), 2**31)  # learning costs 400 draws
    fifty = DrawPace(Search(problem, Budget(1_000.0)), Go(finetune=50), 50, 0.01)
    fifty.network_s = [0.1, 0.3]
    assert fifty.next(10, 0.01)[0] == pytest.approx(1_000 / 40 - 0.4, abs=0.1)
    counted = DrawPace(Search(problem, Budget(None, 10_000)), Go(scratch=True), None, 0.01)
    assert counted.next(0, 1e-6) == (None, 16)
    assert counted.temperature(0) == 0.01
    counted.search.count(1_000)
    assert counted.next(0, 1e-6) == (None, 125)
    assert 1e-4 < counted.temperature(0) < 1.2e-4
    counted.search.count(24)  # then it begins anew, for longer
    assert counted.temperature(0) == 0.01
    counted.search.count(8_000)
    assert counted.next(0, 1e-6) == (None, 256)


def test_what_is_drawn_with_a_budget_begins_what_is_drawn_with_more(problem: Problem) -> None:
    small, large = (
        DrawPace(Search(problem, Budget(None, most)), Go(scratch=True), None, 0.01) for most in (500, 9_000)
    )
    for pace in (small, large):
        pace.search.count(300)
    assert small.next(1, 0.0) == large.next(1, 0.0) and small.temperature(1) == large.temperature(1)


def test_near_the_end_no_pass_is_begun_that_would_outlast_the_budget(problem: Problem) -> None:
    pace = DrawPace(Search(problem, Budget(1.0)), Go(scratch=True, share=0.5), None, 0.01)
    pace.network_s = [0.3, 0.6]
    seconds, _ = pace.next(1, 0.01)
    assert seconds is not None
    assert seconds > 0.9  # the rest: 0.9 s of draws and another pass would be too much


def test_two_chains_walk_and_one_that_fell_behind_goes_on_from_the_best(problem: Problem) -> None:
    chains, one = chains_of(problem, PLACING, 2_000)
    chains.walk(policy_of(one), lambda: 1e-3, None, 1_500)
    assert len(chains.chains) == CHAINS == 2
    best = min(int(chain.score[3]) for chain in chains.chains)
    assert all(chain.score[1] * 0.97 <= best for chain in chains.chains)
