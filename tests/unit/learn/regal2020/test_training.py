"""The steps of REGAL's training, with parts in their place that write down what they were asked."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn import examples  # noqa: E402
from loadmaster.learn.examples import Elite, Key  # noqa: E402
from loadmaster.learn.regal2020 import training  # noqa: E402
from loadmaster.learn.regal2020.settings import RegalSettings  # noqa: E402
from loadmaster.learn.regal2020.training import RegalRun, RegalState  # noqa: E402
from tests.unit.learn.stand_in import listening  # noqa: E402


class Network(torch.nn.Module):
    """One weight, which is what it says."""

    def __init__(self, weight: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([weight]))

    def forward(self, batch: Any) -> Any:
        return batch, self.weight, self.training


def run_of(tmp_path: Path, **settings: Any) -> Any:
    """A run that writes down instead of doing."""
    run: Any = RegalRun.__new__(RegalRun)
    run.settings, run.state = RegalSettings("corpus", str(tmp_path), **settings), RegalState()
    run.out, run.device, run.begun, run.pool = tmp_path, torch.device("cpu"), 0.0, None
    run.keys, run.valid, run.apart, run.average = [], [], frozenset(), None
    run.network = Network()
    run._batch = lambda chosen: [example.key.line for example in chosen]
    return listening(run)


def example(line: int) -> Any:
    return SimpleNamespace(key=Key(line, 0))


def test_the_fit_learns_from_graphs_that_are_not_kept_apart_and_looks_at_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, fit_steps=100, fit_rate=1e-2, graphs=2, fit_look=40, rate=1e-4)
    run.apart, asked = frozenset([3]), []
    monkeypatch.setattr(training, "imitation_loss", lambda said, chosen: asked.append(said) or (torch.tensor(2.0), 0.5))
    run._follow, run.validate = lambda: run.did.append("follow"), lambda: run.did.append("validate")
    run._look = lambda held: run.did.append((run.state.step, [each.key.line for each in held]))
    run._begin_adam = lambda rate: run.did.append(rate)
    run.fit([example(line) for line in range(6)])
    assert run.rates == pytest.approx([1e-2 * (0.05 + 0.95 * (1 - n / 100) ** 1.5) for n in range(100)])
    assert run.notes == [(step, {"loss": 2.0, "accuracy": 0.5}) for step in (50, 100)]
    steps = ["follow"] * 40
    assert run.did == [*steps, (40, [3]), *steps, (80, [3]), *steps[:20], 1e-4, "validate", "save"]
    drawn = [np.random.default_rng([0, 1, n]).choice(5, 2, replace=False) for n in range(100)]
    assert [said[0] for said in asked] == [[[0, 1, 2, 4, 5][i] for i in some] for some in drawn]
    assert all(said[2] for said in asked), "something is dropped while it learns"
    assert (run.state.phase, run.state.step) == ("reinforce", 0)


def test_of_few_graphs_all_are_learned_from_and_a_fit_that_is_over_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = run_of(tmp_path, fit_steps=1, graphs=9), []
    monkeypatch.setattr(training, "imitation_loss", lambda said, chosen: asked.append(said) or (torch.tensor(0.0), 0.0))
    run._follow = run.validate = lambda: None
    run._begin_adam = lambda rate: None
    run.fit([example(0), example(1)])
    assert sorted(asked[0][0]) == [0, 1]
    run.did.clear()
    run.fit([example(0)])
    assert run.did == [] and len(asked) == 1
    late = run_of(tmp_path)
    late.late = lambda share: share == late.settings.fit_share
    late._begin_adam, late.validate = lambda rate: None, lambda: None
    late.fit([example(0)])
    assert late.did == ["save"] and not late.rates


@pytest.mark.parametrize(
    ("step", "average", "stays"), [(0, 0.995, 0.1), (8, 0.995, 0.5), (8, 0.3, 0.3), (89, 0.995, 90 / 99)]
)
def test_the_average_takes_short_steps_after_long_ones(step: int, average: float, stays: float, tmp_path: Path) -> None:
    run = run_of(tmp_path, average=average)
    run._follow()
    run.state.step, run.average, run.network = step, Network(2.0), Network(12.0)
    run._follow()
    assert float(run.average.weight.detach()) == pytest.approx(2.0 * stays + 12.0 * (1 - stays))


@pytest.mark.parametrize(("count", "parts"), [(1, [1]), (16, [16]), (17, [16, 1])])
def test_held_out_plans_are_guessed_sixteen_at_a_time(
    count: int, parts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = run_of(tmp_path), []

    def loss(said: Any, some: list[Any]) -> tuple[Any, float]:
        seen.append((len(some), said[2]))
        return torch.tensor(float(len(some))), 1.0 / len(some)

    monkeypatch.setattr(training, "imitation_loss", loss)
    run._look([example(line) for line in range(count)])
    assert seen == [(part, False) for part in parts]
    held, guessed = sum(part * part for part in parts) / count, len(parts) / count
    assert run.notes == [(0, {"held": pytest.approx(held), "guessed": pytest.approx(guessed)})]
    assert run.did == [f"step 0: held {held:.4f}, guessed {guessed:.4f}"]


def test_reinforcing_notes_every_step_and_tells_every_tenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_of(tmp_path, steps=20, graphs=2, valid_every=8), []
    run.apart = frozenset([0])
    monkeypatch.setattr(training, "draw_actions", lambda outputs, chosen, samples, rng: (outputs[2], samples))
    run._rewards = lambda chosen, actions: asked.append((len(chosen), actions)) or np.array([[1.0, 2.0]])
    run._learn = lambda batch, chosen, actions, outputs, rewards: (3.0, 0.25)
    run.validate = lambda: run.did.append(run.state.step)
    run.reinforce([example(line) for line in range(4)])
    assert [step for step, _ in run.notes] == list(range(1, 21)) and asked == [(2, (False, 8))] * 20
    assert run.notes[0][1] == {"loss": 3.0, "reward": 1.5, "entropy": 0.25}
    told = "reward +1.5000, entropy 0.25"
    assert run.did == [8, f"step 10: {told}", 16, f"step 20: {told}"]
    late = run_of(tmp_path, steps=9)
    late.late = lambda share: share == 0.97
    late.reinforce([example(0)])
    assert late.state.step == 0


def test_rewards_are_against_standard_brkga_and_samples_go_out_in_two_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = run_of(tmp_path, evaluations=30), []
    run._standard = lambda keys, evaluations: np.array([10.0, 20.0])
    run.state.step = 6

    def in_order(pool: Any, function: Any, jobs: Any, window: int) -> Any:
        asked.extend(jobs)
        assert function is training.action_job and window == 4
        return [[{"a": 5, "b": 10, "c": 20}[action] for action in job[1]] for job in jobs]

    monkeypatch.setattr(training, "in_order", in_order)
    found = run._rewards([example(0), example(1)], [["a", "b", "c"], ["c", "c", "a"]])  # type: ignore[list-item]
    assert [(job[1], job[2], job[3]) for job in asked] == [
        (["a", "b"], 6, 30),
        (["c"], 6, 30),
        (["c", "c"], 6, 30),
        (["a"], 6, 30),
    ]
    np.testing.assert_allclose(found, np.log([[2.0, 1.0, 0.5], [1.0, 1.0, 4.0]]))


def test_what_standard_brkga_reaches_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_of(tmp_path), []

    def in_order(pool: Any, function: Any, jobs: Any, window: int) -> Any:
        asked.append(list(jobs))
        return [100 * key.line + evaluations for key, evaluations in jobs]

    monkeypatch.setattr(training, "in_order", in_order)
    one, two = Key(1, 0), Key(2, 0, "regal")
    assert run._standard([one, two], 5).tolist() == [105.0, 205.0]
    assert run._standard([two, one, Key(1, 1)], 5).tolist() == [205.0, 105.0, 105.0]
    assert run._standard([one], 6).tolist() == [106.0]
    assert asked == [[(one, 5), (two, 5)], [(Key(1, 1), 5)], [(one, 6)]]


def test_learning_is_ppo_on_choices_with_levels_entropy_and_imitation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, epochs=2, clip=0.2, entropy=0.5, imitate=0.25, rate=0.125)
    rewards = np.array([[0.0, 3.0], [1.0, 1.0]])
    scaled = (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(axis=1, keepdims=True) + 0.003)
    moved = torch.tensor([[0.0, 0.5], [-0.4, 0.1]])  # how much likelier each is than it was
    before = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]])
    choices = iter([before, before + moved, before + moved])
    monkeypatch.setattr(training, "choice_log_chance", lambda logits, picks: (next(choices), torch.tensor(3.0)))
    monkeypatch.setattr(training, "level_log_chance", lambda *_: torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]))
    monkeypatch.setattr(training, "imitation_loss", lambda *_: (torch.tensor(7.0), 0.0))
    run.network, run._follow = lambda batch: SimpleNamespace(choices=None), lambda: run.did.append("follow")
    actions = [[SimpleNamespace(choices=[0, 1])] * 2] * 2
    loss, entropy = run._learn("batch", [], actions, SimpleNamespace(choices=None), rewards)
    terms = []
    for row in range(2):
        for column in range(2):
            ratio, worth = math.exp(float(moved[row, column])), scaled[row, column]
            terms.append(min(ratio * worth, min(1.2, max(0.8, ratio)) * worth))
    levels = (-1.0 * scaled[0, 0] - 2.0 * scaled[0, 1]) / 4
    wanted = -(sum(terms) / 4 + levels) - 0.5 * 3.0 + 0.25 * 7.0
    assert loss == pytest.approx(wanted, rel=1e-5) and entropy == 3.0
    assert run.losses == pytest.approx([wanted, wanted], rel=1e-5)
    assert run.rates == [0.125] and run.did == ["follow", "follow"]


def test_an_advantage_is_at_most_three_deviations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, epochs=1, entropy=0.0, imitate=0.0)
    rewards = np.zeros((1, 40))
    rewards[0, 0], rewards[0, 1] = 5.0, -5.0
    monkeypatch.setattr(training, "choice_log_chance", lambda logits, picks: (torch.zeros(1, 40), torch.tensor(0.0)))
    weight = torch.zeros(1, 40)
    weight[0, 0], weight[0, 1] = 1.0, -10.0
    monkeypatch.setattr(training, "level_log_chance", lambda *_: weight)
    monkeypatch.setattr(training, "imitation_loss", lambda *_: (torch.tensor(0.0), 0.0))
    run.network, run._follow = lambda batch: SimpleNamespace(choices=None), lambda: None
    loss, _ = run._learn("batch", [], [[SimpleNamespace(choices=[0])] * 40], SimpleNamespace(choices=None), rewards)
    assert loss == pytest.approx(-(3.0 + 30.0) / 40)


def test_validation_is_in_percent_by_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_of(tmp_path, valid_evaluations=50), []
    run._keep_if_best = lambda means, actions: run.did.append((means, actions))
    run.validate()
    assert run.did == []
    run.valid = [Key(0, 0, "regal"), Key(1, 0, "regal"), Key(2, 0, "bandwidth")]
    run._standard = lambda keys, evaluations: np.array([100.0, 200.0, 50.0])

    def in_order(pool: Any, function: Any, jobs: Any, window: int) -> Any:
        if function is training.features_job:
            return [f"features {key.line}" for key in jobs]
        asked.extend(jobs)
        return [[90], [150], [55]]

    monkeypatch.setattr(training, "in_order", in_order)
    monkeypatch.setattr(training, "batch_of", lambda many, device: many)
    monkeypatch.setattr(training, "likeliest_action", lambda outputs, each: each)
    run.validate()
    means, actions = run.did[0]
    assert means == {"regal": pytest.approx((10 + 25) / 2), "bandwidth": pytest.approx(-10.0)}
    assert run.notes == [(0, means)] and actions == ["features 0", "features 1", "features 2"]
    assert asked == [(key, [action], 0, 50) for key, action in zip(run.valid, actions, strict=True)]


def test_the_best_is_kept_by_the_paper_s_setting_and_a_tenth_of_the_others(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.export = lambda known: run.did.append("export")
    actions = [SimpleNamespace(choices=np.array(each)) for each in ([1, 2], [1, 0], [0, 0])]
    run.state.best = 2.5
    run._keep_if_best({"regal": 2.0, "unlike": 4.0, "bandwidth": 6.0}, actions)
    assert run.did == ["step 0: regal +2.00 %, unlike +4.00 %, bandwidth +6.00 % [1, 0]", "export"]
    assert run.state.best == pytest.approx(3.0) and run.state.constant == [1, 0]
    run.did.clear()
    run._keep_if_best({"regal": 3.0}, actions)
    assert run.did == ["step 0: regal +3.00 % [1, 0]"]


def test_elites_are_gathered_and_kept_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {Key(0, 1): Elite(ints([0]), ints([0]), 1)}
    monkeypatch.setattr(training, "load_elites", lambda path: known)
    (tmp_path / "elites.npz").write_bytes(b"")
    saved: list[Any] = []
    monkeypatch.setattr(training, "save_elites", lambda path, keys, elites: saved.append((path.name, len(keys))))
    monkeypatch.setattr(training, "IN_A_FILE", 2)

    def in_order(pool: Any, function: Any, jobs: Any, window: int) -> Any:
        for key, given, simulations in jobs:
            assert simulations == 90 and (given == 0) == (key not in known)
            elite = None if key.seed == 2 else known.get(key, "elite")
            yield key, elite, None if elite is None else "features"

    monkeypatch.setattr(training, "in_order", in_order)
    for started, late, count in ((0, False, 6), (4, False, 4), (4, True, 4), (0, True, 1)):
        saved.clear()
        run = run_of(tmp_path, elite_simulations=90)
        run.keys, run.state.elites = [Key(0, seed) for seed in range(6)], started
        run.late = lambda share, late=late, run=run: late and share == run.settings.gather_share
        found = run.gather()
        assert [each.key.seed for each in found] == [n for n in range(count) if n != 2]
        assert run.state.elites == count and run.did[-1] == f"{len(found)} examples with elites"
        wanted = {
            6: [("000003.npz", 2), ("000005.npz", 2), ("000006.npz", 1)],
            4: [("000003.npz", 2), ("000004.npz", 1)],
        }
        assert saved == wanted.get(count, [("000001.npz", 1)])


def test_keys_come_by_turns_and_validation_is_two_thirds_on_equal_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = training.example_keys([5, 6, 7], RegalSettings("a", "b", warm=8, seed=4))
    assert len(keys) == 8 and [key.seed for key in keys] == [1, 1, 1, 2, 2, 2, 3, 3]
    for turn in (1, 2):
        order = np.random.default_rng([4, 3, turn]).permutation(np.array([5, 6, 7])).tolist()
        assert [key.line for key in keys if key.seed == turn] == order
    monkeypatch.setattr(training, "in_order", lambda pool, function, jobs, window: [key.line % 5 > 0 for key in jobs])
    found = training.valid_keys(None, range(40), RegalSettings("a", "b", valid_graphs=8))  # type: ignore[arg-type]
    order = [line for line in np.random.default_rng(5).permutation(np.arange(40))[:24].tolist() if line % 5][:8]
    names = ["regal"] * 4 + ["unlike", "bandwidth", "regal", "regal"]
    assert found == [Key(line, 0, name) for line, name in zip(order, names, strict=True)]


def test_graphs_kept_apart_are_a_fold_a_file_or_every_sixteenth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "fold_of", lambda line, folds: line % folds)
    monkeypatch.setattr(examples, "read_corpus", lambda path, share: ([path, share], "other"))
    lines = list(range(40))
    assert training._kept_apart(RegalSettings("a", "b"), lines, "all") == ([0, 16, 32], "all")
    assert training._kept_apart(RegalSettings("a", "b", folds=20, fold=3), lines, "all") == ([3, 23], "all")
    assert training._kept_apart(RegalSettings("a", "b", valid="c"), lines, "all") == (["c", 1.0], "other")


def test_files_of_elites_become_one(tmp_path: Path) -> None:
    (tmp_path / "elites").mkdir()
    for name, key in (
        ("elites-old.npz", Key(1, 1)),
        ("elites/000004.npz", Key(2, 1)),
        ("elites/000008.npz", Key(1, 1)),
    ):
        value = int(name[-5]) if name[-5].isdigit() else 99
        examples.save_elites(tmp_path / name, [key], [Elite(ints([0]), ints([0]), value)])
    training.join_elites(tmp_path)
    assert {path.name for path in tmp_path.rglob("*.npz")} == {"elites-old.npz", "elites.npz"}
    known = examples.load_elites(tmp_path / "elites.npz")
    assert {key: elite.value for key, elite in known.items() if elite} == {Key(1, 1): 8, Key(2, 1): 4}
