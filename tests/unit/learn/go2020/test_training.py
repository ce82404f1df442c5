"""The steps of GO's training, with parts in their place that write down what they were asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.errors import InvalidSetting  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.go2020 import training  # noqa: E402
from loadmaster.learn.go2020.examples import GoKey  # noqa: E402
from loadmaster.learn.go2020.settings import GoSettings, GoState  # noqa: E402
from loadmaster.learn.go2020.training import GoRun  # noqa: E402
from loadmaster.search import Score  # noqa: E402
from tests.unit.learn.stand_in import listening  # noqa: E402


def run_of(tmp_path: Path, **settings: Any) -> Any:
    """A run that writes down instead of doing."""
    run: Any = GoRun.__new__(GoRun)
    run.settings, run.state, run.out, run.device = (
        GoSettings("corpus", str(tmp_path), **settings),
        GoState(),
        tmp_path,
        "cpu",
    )
    run.keys, run.valid, run.looked, run.controls = [], [], {}, {}
    run.begun, run.how, run.network = 0.0, None, torch.nn.Linear(1, 1)
    return listening(run)


def test_rates_of_the_fit_rise_for_a_hundred_steps_and_fall_with_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, fit_steps=200, fit_rate=1e-2, fit_valid_every=80, rate=1e-4)
    drawn = []
    run.choose = lambda found, rng: drawn.append(rng.integers(1 << 30)) or "chosen"
    run._imitation = lambda chosen, rng: (torch.tensor(2.0), torch.tensor(0.5))
    run.validate = lambda: run.did.append((run.state.phase, run.state.step))
    run.fit(["example"])
    wanted = [1e-2 * min(1.0, (n + 1) / 100) * (0.05 + 0.95 * (1 - n / 200) ** 1.5) for n in range(200)]
    assert run.rates == pytest.approx(wanted) and run.losses == [2.5] * 200
    assert run.rates[0] == pytest.approx(1e-4) and run.rates[100] == pytest.approx(1e-2 * (0.05 + 0.95 * 0.5**1.5))
    assert run.notes == [(step, {"loss": 2.0, "choice": 0.5}) for step in (50, 100, 150, 200)]
    told = [f"step {step}: loss 2.000, choice 0.500" for step in (50, 100, 150, 200)]
    assert run.did == [told[0], ("fit", 80), told[1], told[2], ("fit", 160), told[3], ("reinforce", 0), "save"]
    assert drawn == [np.random.default_rng([0, 1, n]).integers(1 << 30) for n in range(200)]
    assert (run.state.phase, run.state.step) == ("reinforce", 0) and run.adam.param_groups[0]["lr"] == 1e-4


def test_the_clock_may_be_farther_than_the_steps(tmp_path: Path) -> None:
    run = run_of(tmp_path, fit_steps=3, fit_rate=1.0, fit_share=0.8, minutes=1.0)
    run._spent = lambda: 0.2
    asked = []

    def share_done(begun: float, end: float) -> float:
        asked.append((begun, end))
        return 0.5

    run._share_done = share_done
    run.choose = lambda found, rng: None
    run._imitation = lambda chosen, rng: (torch.tensor(0.0), torch.tensor(0.0))
    run.validate = lambda: None
    run.fit(["example"])
    share = [0.5, 0.5, 2 / 3]
    assert run.rates == pytest.approx([(n + 1) / 100 * (0.05 + 0.95 * (1 - s) ** 1.5) for n, s in enumerate(share)])
    assert asked == [(0.2, 0.8)] * 3


def test_a_fit_that_is_over_or_late_is_passed_over_and_one_without_examples_is_told_of(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.state.phase, run.state.step = "reinforce", 7
    run.fit([])
    assert run.state.step == 7 and not run.rates and not run.did
    late = run_of(tmp_path)
    late.late = lambda share: share == late.settings.fit_share
    late.validate = lambda: None
    late.fit(["example"])
    assert not late.rates and late.did == ["save"]
    with pytest.raises(InvalidSetting, match="none of the graphs"):
        run_of(tmp_path).fit([])


def test_reinforcing_weighs_entropy_less_and_less_and_pulls_to_elites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, steps=20, rate=0.1, entropy=0.5, epochs=3, valid_every=8, clip=0.3)
    start = SimpleNamespace(outcome="outcome")
    asked = []
    run.choose = lambda found, rng: asked.append(rng.integers(1 << 30)) or ["one"]
    run._batch, run._starts = lambda chosen: "batch", lambda chosen, rng: [start]
    run.network = lambda batch, last: (batch, last)
    run._rollouts = lambda chosen, starts, batch, outputs, rng: ("draws", "gain", 0.25)
    run._pull = lambda *given: 100.0
    run.validate = lambda: run.did.append(run.state.step)
    monkeypatch.setattr(training, "seen_decisions", lambda batch, outcomes: (batch, *outcomes))
    monkeypatch.setattr(training, "policy_loss", lambda said, batch, draws, gain, clip: torch.tensor(10.0 + clip))
    monkeypatch.setattr(training, "entropy_of", lambda said, batch: torch.tensor(4.0))
    run.reinforce(["found"])
    share = [n / 20 for n in range(20)]
    assert run.rates == pytest.approx([0.1 * (0.05 + 0.95 * (1 - s)) for s in share])
    assert run.losses == pytest.approx([10.3 - 0.5 * (1 - s) * 4.0 + 100.0 for s in share for _ in range(3)])
    assert [step for step, _ in run.notes] == list(range(1, 21))
    assert run.notes[4][1] == {"loss": pytest.approx(run.losses[14]), "reward": 0.25, "entropy": 4.0}
    told = "reward +0.2500, entropy 4.000"
    assert run.did == [8, f"step 10: {told}", 16, f"step 20: {told}"]
    assert asked == [np.random.default_rng([0, 2, n]).integers(1 << 30) for n in range(20)]


def test_reinforcing_ends_with_the_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=5)
    run.late = lambda share: share == 0.97
    run.reinforce(["found"])
    assert run.state.step == 0


@pytest.mark.parametrize(
    ("weight", "values", "pulls"), [(0.5, (2, 1), True), (0.0, (2, 1), False), (0.5, (2, 0), False)]
)
def test_the_pull_is_to_elites_and_the_best_candidates_where_all_have_them(
    weight: float, values: tuple[int, int], pulls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, imitate=weight)
    chosen = [SimpleNamespace(candidate_value=[1] * count) for count in values]
    monkeypatch.setattr(training, "imitation_loss", lambda said, batch, last, *targets: 3.0)
    run._targets, run._choice = lambda chosen, starts: ("device", "level"), lambda chosen, batch: 0.5
    assert run._pull("said", "batch", "last", chosen, []) == (1.75 if pulls else 0.0)


def test_imitation_is_the_worth_of_moves_and_a_tenth_of_the_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path)
    start = SimpleNamespace(outcome=SimpleNamespace(decided="decided"), moves="moves")
    run._batch, run._starts, run._targets = lambda _: "batch", lambda *_: [start], lambda *_: ("device", "level")
    run._choice, run.network = lambda *_: "choice", lambda *_: "said"
    monkeypatch.setattr(training, "seen_decisions", lambda *_: "last")
    monkeypatch.setattr(training, "move_loss", lambda *given: 2.0 if given == ("said", ["decided"], ["moves"]) else 0)
    monkeypatch.setattr(training, "imitation_loss", lambda *_: 5.0)
    assert run._imitation(["one"], None) == (2.5, "choice")


def test_targets_are_padded_to_the_most_groups(tmp_path: Path) -> None:
    chosen = [SimpleNamespace(one=SimpleNamespace(num_groups=count)) for count in (1, 3)]
    starts = [
        SimpleNamespace(device=ints([7]), level=ints([4])),
        SimpleNamespace(device=ints([1, 2, 3]), level=ints([5, 6, 8])),
    ]
    device, level = run_of(tmp_path)._targets(chosen, starts)
    assert device.tolist() == [[7, 0, 0], [1, 2, 3]] and level.tolist() == [[4, 0, 0], [5, 6, 8]]


def test_examples_are_chosen_evenly_from_the_processes_that_have_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, graphs=5)
    run.pools = SimpleNamespace(home=lambda key: key % 2)
    found = [SimpleNamespace(key=key) for key in (3, 2, 4, 6, 8, 10, 12)]
    picks = run.choose(found, np.random.default_rng(0))
    assert [pick.key % 2 for pick in picks] == [0, 1, 0, 1, 0]
    assert len({pick.key for seed in range(20) for pick in run.choose(found, np.random.default_rng(seed))}) == 7
    assert len(run.choose(found[:2], np.random.default_rng(0))) == 2


def test_rewards_of_rollouts_are_against_what_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    drawn = SimpleNamespace(whole=np.array([False, False]), decided=lambda: "decided")
    asked = []
    monkeypatch.setattr(training, "stand_of", lambda outputs, batch, row, one, decided: (row, decided))
    monkeypatch.setattr(
        training, "draw_changes", lambda one, stand, how, rng, tries: asked.append((stand, tries)) or drawn
    )
    answers = [(ints([0, 0]), ints([100, 900]), 10.0), (ints([0, 5]), ints([400, 400]), 10.0)]
    run.pools = SimpleNamespace(in_order=lambda job, jobs: iter(answers))
    chosen = [SimpleNamespace(key=n, one=SimpleNamespace(label=None), plain=ints([100, 1])) for n in range(2)]
    scores = [Score(0, 400), Score(0, 400)]
    starts = [SimpleNamespace(outcome=SimpleNamespace(decided=f"stands {n}", score=scores[n])) for n in range(2)]
    draws, gain, mean = run._rollouts(chosen, starts, "batch", "outputs", None)
    assert asked == [((0, "stands 0"), 3), ((1, "stands 1"), 3)] and draws == [drawn, drawn]
    first, second = np.array([-1.0, -3.0]), np.array([-2.0, -2.0 - 1.0 - 4 * 0.5])  # roots of times, bytes over
    np.testing.assert_allclose(gain[0], (first + 2.0) / (first.std() + 1e-3))
    np.testing.assert_allclose(gain[1], (second + 2.0) / (second.std() + 1e-3))
    assert mean == pytest.approx(((first.mean() + 2.0) + (second.mean() + 2.0)) / 2)


def test_validation_keeps_the_weights_that_are_best_against_the_fixed_order(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.export = lambda known: run.did.append("export")
    run.validate()
    assert run.notes == []
    run.valid = ["one", "two"]
    run.controls = {"fixed": np.array([100.0, 200.0]), "heft": np.array([50.0, 0.5])}
    run.zero_shot = lambda many: np.array([100.0, 50.0])
    run.state.step, run.state.best = 3, 0.0
    run.validate()
    assert run.notes[0][1] == {"over_fixed": pytest.approx(0.5), "over_heft": pytest.approx((2 * 50) ** 0.5)}
    assert run.state.best == pytest.approx(np.log(2)) and run.state.at == "fit 3" and run.did[-1] == "export"
    assert run.did[0] == "step 3: over_fixed 0.5000, over_heft 10.0000"
    run.did.clear()
    run.validate()  # no better than before
    assert "export" not in run.did
    run.zero_shot = lambda many: np.array([100.0, 60.0])
    run.validate()
    assert "export" not in run.did and run.state.best == pytest.approx(np.log(2))


@pytest.mark.parametrize(("count", "parts"), [(1, [1]), (16, [16]), (17, [16, 1]), (40, [16, 16, 8])])
def test_validation_asks_the_network_about_sixteen_graphs_at_once(
    count: int, parts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sizes = run_of(tmp_path), []
    run._batch = len
    run._look = lambda part, wanted: [
        [SimpleNamespace(score=(example.key, each)) for each in wanted] for example in part
    ]

    def zero_shot(network: Any, many: Any, batch: int, samples: int, judge: Any) -> Any:
        sizes.append((batch, samples))
        return judge(["a", "b"])

    monkeypatch.setattr(training, "zero_shot", zero_shot)
    run.pools = SimpleNamespace(in_order=lambda job, jobs: [10 * key + len(scores) for key, scores in jobs])
    found = run.zero_shot([SimpleNamespace(key=key, one=None) for key in range(count)])
    assert found.tolist() == [10 * key + 2 for key in range(count)] and sizes == [(part, 8) for part in parts]


@pytest.mark.parametrize(
    ("now", "begun", "end", "spent", "done"),
    [(0.0, 0.0, 0.5, 0.0, 0.0), (60.0, 0.1, 0.3, 0.1, 0.0), (120.0, 0.1, 0.3, 0.2, 0.5), (540.0, 0.1, 0.3, 0.9, 1.0)],
)
def test_how_much_of_a_phase_is_over(
    now: float, begun: float, end: float, spent: float, done: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 5.0 + now)
    run = run_of(tmp_path, minutes=10.0)
    run.begun = 5.0
    assert run._spent() == pytest.approx(spent) and run._share_done(begun, end) == pytest.approx(done)
    assert run._share_done(1.0, 1.0) == 0.0
    assert run_of(tmp_path)._spent() == 0.0 == run_of(tmp_path)._share_done(0.0, 1.0)


class Gathered:
    """Elites that are asked for one by one."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def in_order(self, job: Any, jobs: Any) -> Any:
        for key, known, simulations in jobs:
            self.asked.append((key, known, simulations))
            yield key, (None if key.seed == 2 else f"elite {key.seed}")


@pytest.mark.parametrize("started", [False, True])
def test_elites_are_gathered_and_kept_as_they_come(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, warm=7, elite_simulations=50)
    run.keys, run.pools, run.state.elites = [GoKey(0, seed) for seed in range(9)], Gathered(), 4 if started else 0
    run._found = lambda pairs: [key.seed for key, _ in pairs]
    saved = []
    monkeypatch.setattr(training, "IN_A_FILE", 2)
    monkeypatch.setattr(training, "known_elites", lambda out: {GoKey(0, 1): "elite 1"})
    monkeypatch.setattr(training, "save_elites", lambda path, keys, elites: saved.append((path.name, len(keys))))
    found = run.gather()
    count = 4 if started else 7
    assert run.pools.asked == [(GoKey(0, n), "elite 1" if n == 1 else 0, 50) for n in range(count)]
    assert found == [n for n in range(count) if n != 2] and run.state.elites == count
    assert (
        saved == [("000003.npz", 2), ("000004.npz", 1)]
        if started
        else saved
        == [
            ("000003.npz", 2),
            ("000005.npz", 2),
            ("000007.npz", 2),
        ]
    )


@pytest.mark.parametrize("started", [False, True])
def test_gathering_ends_with_its_share_of_the_time_at_a_fresh_elite(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, warm=7)
    run.keys, run.pools, run.state.elites = [GoKey(0, seed) for seed in range(9)], Gathered(), 5 if started else 0
    run._found = lambda pairs: [key.seed for key, _ in pairs]
    run.late = lambda share: share == run.settings.gather_share
    monkeypatch.setattr(training, "known_elites", lambda out: {GoKey(0, 0): "elite 0", GoKey(0, 1): "elite 1"})
    monkeypatch.setattr(training, "save_elites", lambda *_: None)
    assert run.gather() == ([0, 1, 3, 4] if started else [0, 1])
    assert run.state.elites == (5 if started else 3)


def test_without_a_warm_start_the_first_keys_are_examples(tmp_path: Path) -> None:
    run = run_of(tmp_path, warm=0, cold=3)
    run.keys, run._found = [GoKey(0, seed) for seed in range(9)], list
    assert run.gather() == [(GoKey(0, seed), None) for seed in range(3)]


def test_examples_that_do_not_suit_are_left_out(tmp_path: Path) -> None:
    run = run_of(tmp_path, tasks="fusion,placement", groups=9)
    asked = []
    run.pools = SimpleNamespace(in_order=lambda job, jobs: asked.extend(jobs) or [None, "example"])
    assert run._found([("a", "elite"), ("b", None)]) == ["example"] and run.did == ["1 examples"]
    assert asked == [("a", "elite", 9, True), ("b", None, 9, True)]


def test_graphs_kept_apart_are_drawn_once_each_until_there_are_enough(tmp_path: Path) -> None:
    run = run_of(tmp_path, valid_graphs=4, valid_simulations=70)
    order = np.random.default_rng(5).permutation([3, 4, 5]).tolist()
    asked = []

    def in_order(job: Any, jobs: Any) -> Any:
        for each in jobs:
            asked.append(each)
            if job is training.elite_job:
                yield each[0], None if each[0].line == 4 else "elite"
            else:
                yield 1_000 + each[1]

    run.pools = SimpleNamespace(in_order=in_order)
    made = training.GoExample(GoKey(0, 0), None, None, None, ())  # type: ignore[arg-type]
    run._found = lambda pairs: [training.replace(made, key=key) for key, _ in pairs]
    found = training.valid_examples(run, [3, 4, 5])
    keys = [GoKey(line, 1_000 + turn) for turn in range(3) for line in order]
    good = [key for key in keys if key.line != 4][:4]
    assert [each.key for each in found] == good and [each.value for each in found] == [1_070] * 4
    assert asked[: len(asked) - 4] == [(key, 0, 1) for key in keys[: keys.index(good[-1]) + 1]]
    assert asked[-4:] == [(key, 70) for key in good]


def test_what_was_looked_at_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_of(tmp_path), []
    monkeypatch.setattr(training, "decided_key", lambda each: each)
    run.pools = SimpleNamespace(
        in_order=lambda job, jobs: asked.extend(jobs) or [[f"{j[0]}{e}" for e in j[2]] for j in jobs]
    )
    many = [SimpleNamespace(key=key, one=SimpleNamespace(label=None)) for key in "pq"]
    assert run._look(many, [["a", "b"], ["a"]]) == [["pa", "pb"], ["qa"]]
    assert run._look(many, [["b", "c"], ["a"]]) == [["pb", "pc"], ["qa"]]
    assert asked == [("p", None, ["a", "b"]), ("q", None, ["a"]), ("p", None, ["c"])]
