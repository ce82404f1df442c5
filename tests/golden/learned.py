"""Writes afresh what learned methods are taught and what they do: python -m tests.golden.learned [SCENE ...]

Three kinds of scenes: problems that are drawn to learn from, training at a tiny scale, and plans of learned methods.
All are made in one process from fixed seeds. Networks add up fractions, whose last digits are the machine's: of all
numbers a few sums are kept and compared to a part in a thousand. Training is told by its losses and the size of its
gradients, step by step, since Adam makes whole steps of gradients that are nothing but rounding.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget, price, solve
from loadmaster.files import graph_to_json
from loadmaster.graph import Graph
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.zoo.synthetic import generate
from tests.golden.inputs import arrays, sums_of
from tests.golden.plans import ALL, PROBLEMS, layers

FILE = Path(__file__).parent / "learned.json"
Told = dict[str, list[float]]
SCENES: dict[str, Callable[[], Told]] = {}


def scene(make: Callable[[], Told]) -> Callable[[], Told]:
    SCENES[make.__name__.replace("_", " ")] = make
    return make


def told_of(name: str, value: Any) -> Told:
    return {each: sums_of(array) for each, array in arrays(name, value)}


def graph_told(name: str, graph: Graph) -> Told:
    columns = (graph.read_start, graph.reads, graph.producer, graph.nbytes, graph.flops, graph.bytes_moved)
    columns = (*columns, graph.role, graph.alias_of, graph.after_start, graph.after)
    kinds = float(zlib.crc32(repr(graph.kind).encode()))
    return {name: [float(graph.num_ops), float(graph.num_tensors), *(sums_of(column)[-2] for column in columns), kinds]}


def problem_told(name: str, problem: Problem) -> Told:
    columns = (problem.op_ns, problem.send_ns, problem.memory_bytes, problem.cluster.channel)
    found = [float(problem.num_devices), *(sums_of(np.asarray(column))[-2] for column in columns)]
    return {f"{name} on": found, **graph_told(f"{name} of", problem.graph)}


@contextmanager
def corpus(count: int, ops: tuple[int, int], **more: Any) -> Iterator[str]:
    """A file of generated graphs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graphs.jsonl"
        rows = [{**graph_to_json(graph), **more} for graph in generate("layered", count, 0, ops)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield str(path)


# Problems to learn from


@scene
def examples_of_go() -> Told:
    from loadmaster.learn.go2020 import drawing, examples
    from loadmaster.learn.go2020.examples import DRAWN, GoKey

    examples.forget_graphs()
    found: Told = {}
    for seed in range(14):
        rng = np.random.default_rng(seed)
        found |= graph_told(f"branching {seed}", drawing.branching_step(rng, 120))
        problem = price(layers(2, 3, 1), drawing.draw_cluster(rng))
        found |= problem_told(f"cluster {seed}", problem)
        found |= graph_told(f"varied {seed}", drawing.vary(problem.graph, rng))
    for seed in range(10):
        key = GoKey(DRAWN, seed)
        found |= problem_told(f"drawn {seed}", examples.make_problem(key))
        found[f"drawn {seed} suits"] = [examples.suits(key), examples.parallelism(examples.make_problem(key))]
    keys = examples.example_keys([3, 5, 8], 40, 1)
    found["keys"] = sums_of(np.array(keys))
    return found


@scene
def examples_of_schedules() -> Told:
    from loadmaster.learn.scheduling import examples

    examples.make_example.cache_clear()
    found: Told = {}
    for seed in range(12):
        found |= graph_told(f"unrolled {seed}", examples.unrolled_step(np.random.default_rng(seed)))
        found |= graph_told(f"drawn {seed}", examples.draw_graph(np.random.default_rng(seed)))
        rng = np.random.default_rng(seed)
        problem = price(layers(2, 3, 1, training=True), examples.draw_cluster(rng))
        found |= problem_told(f"tight {seed}", examples.tightened(problem, 1.3, rng))
    clusters = [examples.draw_cluster(np.random.default_rng(seed)) for seed in range(80)]
    found["devices"] = [float(len(cluster.devices)) for cluster in clusters]
    for kind in range(1, 6):
        plan = examples.first_plan(PROBLEMS["tight"](), kind)
        found[f"first {kind}"] = [*sums_of(plan.device), *sums_of(plan.rank)]
    for most in (400, 40, 20, 6):
        small = examples.coarser(PROBLEMS["tight"](), most)
        found |= {f"coarser {most}": [-1.0]} if small is None else problem_told(f"coarser {most}", small)
    return found


@scene
def whole_examples_of_schedules() -> Told:
    from loadmaster.learn.scheduling import examples
    from loadmaster.learn.scheduling.examples import ScheduleKey

    examples.make_example.cache_clear()
    found: Told = {}
    for seed in (3, 5, 6):
        made = examples.make_example(ScheduleKey(-1, seed))
        if made is not None:
            found |= problem_told(f"example {seed}", made[0]) | told_of(f"view {seed}", made[1])
            found[f"plan {seed}"] = [*sums_of(made[2].device), *sums_of(made[2].rank)]
    return found


@scene
def examples_of_regal() -> Told:
    from loadmaster.learn import examples, variation
    from loadmaster.learn.examples import Key

    examples.forget_corpora()
    found: Told = {}
    with corpus(9, (45, 60)) as path:
        rows = Path(path).read_text().splitlines()
        for share, training in ((0.75, 3), (0.5, 2), (0.75, 0)):
            examples.forget_corpora()
            mixed = [
                json.dumps({"mode": "training", **json.loads(r)}) if i < training else r for i, r in enumerate(rows)
            ]
            Path(path).write_text("\n".join(mixed) + "\n")
            lines, _ = examples.read_corpus(path, share, seed=4)
            found[f"lines {share} {training}"] = [float(line) for line in lines]
        made = examples.add_generated(4)
        found["generated"] = [float(line) for line in made]
        for line in made:
            found |= graph_told(f"generated {line}", examples.graph_of(line))
        for line in range(9):
            found[f"fold {line}"] = [float(examples.fold_of(line, folds)) for folds in (2, 3, 5)]
        for seed in range(14):
            cluster, objective = examples.draw_setting(np.random.default_rng(seed))
            found |= problem_told(f"setting {seed} {objective}", price(layers(2, 3, 1), cluster))
        for seed in range(8):
            key = Key(seed % 9, seed)
            found |= problem_told(f"example {seed}", examples.make_problem(key))
            found |= told_of(f"features {seed}", examples.make_features(key).ops)
            found[f"suits {seed}"] = [float(examples.suits(key))]
        graph = price(layers(6, 12, 1), "regal").graph
        for seed in range(6):
            found |= graph_told(f"piece {seed}", variation.piece(graph, np.random.default_rng(seed)))
            found |= graph_told(f"varied {seed}", variation.vary(graph, np.random.default_rng(seed)))
        for name in ("unlike", "tasks", "halves"):
            problem = PROBLEMS[name]()
            device = np.arange(problem.num_ops) % problem.num_devices
            seen = examples.features_of(problem)
            found |= told_of(f"canonical {name}", examples.canonical(problem, seen, device))
        elite = examples.find_elite(Key(2, 2), 40)
        found |= told_of("elite", elite)
    return found


@scene
def examples_of_placeto() -> Told:
    from loadmaster.learn.placeto2019 import training
    from loadmaster.learn.placeto2019.training import PlacetoSettings, VariantKey

    found: Told = {}
    with corpus(7, (30, 40)) as path:
        settings = PlacetoSettings(corpus=path, out="none", device="cpu")
        learn, apart, _ = training.read_graphs(settings)
        found["lines"] = [float(line) for line in (*learn, -1, *apart)]
        for seed in range(10):
            cluster = training.draw_cluster(np.random.default_rng(seed))
            found |= problem_told(f"cluster {seed}", price(layers(2, 3, 1), cluster))
        for line in range(3):
            for variant in range(6):
                found |= problem_told(f"problem {line} {variant}", training.make_problem(VariantKey(line, variant)))
        board, label, start = training.make_board(VariantKey(1, 4), 12)
        found |= told_of("board", board) | told_of("label", (label, start))
    return found


# Training


class Here(Executor):
    """Runs what it is given at once, in this process."""

    def submit(self, fn: Any, /, *given: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*given, **more))
        return done


@contextmanager
def here(*_: Any, **__: Any) -> Iterator[Executor]:
    yield Here()


@contextmanager
def traced() -> Iterator[list[float]]:
    """The losses of a run and the lengths of its gradients, in the order of its steps."""
    import torch

    from loadmaster.learn.training import TrainingRun

    torch.set_num_threads(1)
    seen: list[float] = []
    plain = TrainingRun.descend

    def descend(self: TrainingRun, loss: Any, clip: float = 1.0) -> None:
        plain(self, loss, clip)
        norms = [float(each.grad.norm()) for each in self.network.parameters() if each.grad is not None]
        seen.extend([float(loss.detach()), self.adam.param_groups[0]["lr"] * 1e3, *norms[::7]])

    with mock.patch.object(TrainingRun, "descend", descend):
        yield seen


def curves(folder: str) -> Told:
    with (Path(folder) / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    found: Told = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("seconds", "phase") and value:
                found.setdefault(name, []).append(float(value))
    return found


def card(folder: str, *names: str) -> Told:
    known = json.loads((Path(folder) / "card.json").read_text())
    found: Told = {}
    for name in names:
        value = known[name]
        found[name] = [float(each) for each in (value.values() if isinstance(value, dict) else np.ravel([value]))]
    return found


GO = {"warm": 5, "elite_simulations": 30, "fit_steps": 3, "steps": 2, "graphs": 2, "samples": 3, "groups": 24}
GO |= {"valid_graphs": 2, "valid_every": 1, "fit_valid_every": 2, "workers": 2, "device": "cpu", "hidden": 16}
GO |= {"valid_simulations": 60}


def _go(**given: Any) -> Told:
    from loadmaster.learn.go2020 import rollouts
    from loadmaster.learn.go2020.training import GoSettings, train

    with corpus(4, (65, 70)) as path, tempfile.TemporaryDirectory() as out:
        with mock.patch.object(rollouts, "crew", here), traced() as seen:
            train(GoSettings(path, out, valid=path, **{**GO, **given}))  # type: ignore[arg-type]
        return {"descent": list(seen), **curves(out), **card(out, "examples", "steps", "controls_over_fixed")}


@scene
def training_of_go() -> Told:
    return _go()


@scene
def training_of_go_with_kernels_and_no_elites() -> Told:
    given = {"warm": 0, "cold": 3, "steps": 2, "tasks": "fusion,placement,schedule", "choice": "sage", "layers": 1}
    return _go(**given, pooling="sum", modulation=False, valid_graphs=1)


REGAL = {"warm": 6, "elite_simulations": 30, "fit_steps": 4, "steps": 2, "graphs": 3, "samples": 3, "evaluations": 24}
REGAL |= {"generated": 1, "valid_graphs": 2, "valid_evaluations": 24, "valid_every": 1, "workers": 1, "device": "cpu"}


def _regal(**given: Any) -> Told:
    from loadmaster.learn import examples
    from loadmaster.learn.regal2020.settings import RegalSettings
    from loadmaster.learn.regal2020.training import train

    with corpus(6, (42, 50), mode="training") as path, tempfile.TemporaryDirectory() as out:
        with mock.patch.object(examples, "crew", here), traced() as seen:
            train(RegalSettings(path, out, **{**REGAL, **given}))  # type: ignore[arg-type]
        known = examples.load_elites(Path(out) / "elites.npz")
        elites = [[*key[:2], 0 if elite is None else elite.value] for key, elite in known.items()]
        facts = card(out, "examples", "steps", "improvement_over_brkga_percent", "constant")
        return {"descent": list(seen), **curves(out), **facts, "elites": sums_of(np.array(elites))}


@scene
def training_of_regal() -> Told:
    return _regal()


@scene
def training_of_gas_by_folds() -> Told:
    return _regal(policy="gas", folds=2, fold=1, fit_look=2, steps=1, average=0.0, generated=0, warm=8)


def _placeto(**given: Any) -> Told:
    from loadmaster.learn import examples
    from loadmaster.learn.placeto2019.training import PlacetoSettings, train

    tiny = {"steps": 3, "graphs": 2, "episodes": 3, "variants": 4, "groups": 8, "valid_every": 2, "workers": 1}
    with corpus(7, (20, 24)) as path, tempfile.TemporaryDirectory() as out:
        settings = PlacetoSettings(corpus=path, out=out, device="cpu", **{**tiny, **given})
        with mock.patch.object(examples, "crew", here), traced():
            train(settings)
        return {**curves(out), **card(out, "graphs", "steps", "results")}


@scene
def training_of_placeto() -> Told:
    return _placeto(elsewhere=0.6)


@scene
def training_of_placeto_otherwise() -> Told:
    return _placeto(aggregator="simple", once="step", every=1, traversal="reverse", discount=0.9, steps=2)


@scene
def training_of_schedules() -> Told:
    from loadmaster.learn.scheduling import training
    from loadmaster.learn.scheduling.examples import make_example
    from loadmaster.learn.scheduling.training import Settings
    from loadmaster.optimizers.policy.policy import first_weights
    from loadmaster.optimizers.policy.views import view_of

    make_example.cache_clear()
    found: Told = {}
    given = PROBLEMS["unlike"](), PROBLEMS["tight"]()
    made = [(problem, view_of(problem), solve(problem, "heft", Budget(None, 1)).plan) for problem in given]
    weights = first_weights(2)
    for how in (Settings(each=2), Settings(each=2, simulations=12), Settings(each=2, simulations=20, proposes=True)):
        asked = [("held", weights, 0, how), ("train", weights, 1, how), None]
        answers: list[Any] = []
        pipe = mock.Mock(send=answers.append, recv=mock.Mock(side_effect=asked))
        with mock.patch.object(training, "make_example", lambda key: made[key]), mock.patch.object(training, "alone"):
            training._work([0, 1], [0, 1], pipe)  # type: ignore[list-item]
        found |= {f"{how.simulations} {at}": [float(each) for each in said] for at, said in enumerate(answers)}
    ascent = training.Ascent.of(weights[:6])
    for turn in range(3):
        ascent.step(np.arange(6.0) - turn, 0.1)
        ascent.keep(float(turn % 2))
        found[f"ascent {turn}"] = [*ascent.weights, *ascent.mean, *ascent.square, ascent.best, *ascent.best_weights]
    return found


@scene
def training_of_recurrent_placers() -> Told:
    from loadmaster.files import save_graph
    from loadmaster.learn.recurrent.training import RecurrentSettings, train

    found: Told = {}
    with tempfile.TemporaryDirectory() as out, traced():
        save_graph(layers(2, 3, 1), f"{out}/graph.json")
        for policy, more in (("rnn", {"order": "fifo"}), ("hdp", {"warm": "none", "root": False})):
            given: dict[str, Any] = {
                "steps": 9,
                "samples": 4,
                "hidden": 8,
                "groups": 4,
                "device": "cpu",
                "by": "window",
            }
            noise: dict[str, Any] = {"noise": 0.1, "failures": 0.1, **more}
            train(RecurrentSettings(f"{out}/graph.json", f"{out}/{policy}", policy=policy, **given, **noise))
            facts = card(f"{out}/{policy}", "simulations", "steps", "groups", "best_step_ns", "best_peak_bytes")
            found |= {f"{policy} {name}": told for name, told in (curves(f"{out}/{policy}") | facts).items()}
    return found


@scene
def controllers_that_share_a_network() -> Told:
    """Two controllers, whose answers come in turn."""
    from loadmaster.learn.recurrent import controllers

    class Crew:
        def __init__(self, place: Any) -> None:
            self.controller, self.waiting = controllers.Controller(place), list[Any]()

        def submit(self, task: Any) -> None:
            self.waiting.append(self.controller.step(task))

        def next(self) -> Any:
            return self.waiting.pop(0)

    @contextmanager
    def crew(place: Any, *_: Any) -> Iterator[Crew]:
        yield Crew(place)

    method = "rnn:samples=4,hidden=8,controllers=2,noise=0.1"
    with mock.patch.object(controllers, "_crew", crew), mock.patch.object(controllers, "alone"):
        return planned(method, 30)


@scene
def climbing_of_schedules() -> Told:
    """The steps of the ascent, of workers that answer by a rule."""
    from loadmaster.learn.scheduling import training

    class Crew(training.ForkedCrew):
        def __init__(self) -> None:
            self.pipes = [None, None]  # type: ignore[list-item]

        def ask(self, kind: str, weights: Any, seeds: Any, settings: Any) -> list[list[float]]:
            count = settings.each if kind == "train" else 3
            return [[float(np.sin(seed + at + weights.sum())) for at in range(count)] for seed in seeds]

    rows: list[float] = []

    def tell(row: dict[str, float], ascent: Any) -> None:
        rows.extend([row["turn"], row["gain"], row["rough"], row["spread"], *ascent.weights])

    ascent = training.Ascent.of(np.linspace(-1, 1, 5))
    best = training.ascend(Crew(), ascent, training.Settings(each=3), float("inf"), 7, tell, every=3)
    scores = [training.Score(0, 900), training.Score(10**6, 900), training.Score(1, 1)]
    return {
        "climb": rows,
        "best": best.tolist(),
        "worth": [training.worth(PROBLEMS["tight"](), score) for score in scores],
    }


@scene
def shares_of_the_time() -> Told:
    """How far phases are, by the clock, as the rates of learning follow it."""
    from types import SimpleNamespace

    from loadmaster.learn import training
    from loadmaster.learn.go2020.training import GoRun
    from loadmaster.learn.placeto2019.training import PlacetoRun
    from loadmaster.learn.recurrent.training import RecurrentRun
    from loadmaster.learn.regal2020.training import RegalRun

    found: Told = {}
    for minutes in (None, 10.0):
        for now in (0.0, 130.0, 290.0, 400.0, 590.0, 700.0):
            settings = SimpleNamespace(minutes=minutes, steps=8, fit_steps=8, gather_share=0.3, fit_share=0.6)
            run: Any = SimpleNamespace(settings=settings, options=settings, begun=0.0, state=SimpleNamespace(step=2))
            run._spent = lambda run=run: GoRun._spent(run)
            with mock.patch("time.monotonic", lambda now=now: now):
                told = [GoRun._spent(run), GoRun._share_done(run, 0.25, 0.75), PlacetoRun._share(run)]
                told += [RegalRun._fit_share(run), RecurrentRun._share(run)]
                told += [float(training.TrainingRun.late(run, share)) for share in (0.2, 0.5, 0.97)]
            found[f"{minutes} {now:.0f}"] = told
    return found


@scene
def pace_of_go() -> Told:
    """Draws between two passes of the network and their temperature, by simulations and by seconds."""
    from types import SimpleNamespace

    from loadmaster.learn.go2020.chains import DrawPace
    from loadmaster.learn.go2020.optimizer import Go

    found: Told = {}
    for counts, steps in ((True, None), (True, 5), (False, None), (False, 5)):
        state: Any = SimpleNamespace(counts_simulations=counts, simulations=10, seconds_left=8.0, progress=0.1)
        pace = DrawPace(state, Go(share=0.6, rollouts=300), steps, 0.02)
        for step, used in enumerate((20, 500, 1_100, 2_000, 6_000)):
            state.simulations, state.seconds_left, state.progress = used, 8.0 - step, 0.1 + step / 6
            pace.network_s = [0.2, 0.3][: step + 1]
            for draw_s in (1e-4, 1e-2):
                seconds, trials = pace.next(min(step, 4), draw_s)
                told = [-1.0 if seconds is None else seconds, float(trials), pace.share(step), pace.temperature(step)]
                found[f"{counts} {steps} {step} {draw_s}"] = told
    return found


@scene
def draws_of_go() -> Told:
    """Which groups and ops are drawn together, and changes of a plan, by a generator that is the same everywhere."""
    from loadmaster.graph.columns import ints
    from loadmaster.learn.go2020.input import go_input
    from loadmaster.learn.go2020.moves import all_changes, draw_moves
    from loadmaster.learn.go2020.policy import MIDDLE, Decided, _fusion_units, _pick, _tasks_of_draw, draw_units

    found: Told = {}
    few = price(layers(1, 1, 4), "4xp100-pcie")
    for name, problem, groups in (("0", ALL["large"](), 0), ("40", ALL["large"](), 40), ("few", few, 0)):
        one = go_input(problem, groups)
        order = np.argsort(one.mirror, kind="stable")
        for seed in range(6):
            rng = np.random.default_rng(seed)
            drawn = [draw_units(one, order, whole, rng) for whole in (True, *(False,) * 8)]
            drawn += [_fusion_units(one, order, whole, rng) for whole in (True, False, False)]
            found[f"units {name} {seed}"] = [sums_of(units)[-2] for units in drawn]
            picks, chance = _pick(drawn[0], rng.normal(size=(one.num_groups, 3)) * 4, 0.2, rng)
            found[f"picks {name} {seed}"] = [*sums_of(picks), *sums_of(chance)]
            device, better = (ints(rng.integers(0, one.num_devices, one.num_groups)) for _ in range(2))
            decided = Decided(device, ints(np.full(one.num_groups, MIDDLE)), ints([]))
            moves = draw_moves(one, decided, better, 9, rng)
            found |= told_of(f"moves {name} {seed}", moves)
            found[f"changes {name} {seed}"] = [sums_of(each.device)[-2] for each in all_changes(decided, moves)]
            tasks = [_tasks_of_draw(("placement", "schedule", "fusion"), False, rng) for _ in range(9)]
            found[f"tasks {name} {seed}"] = [float(zlib.crc32(repr(tasks).encode()))]
    return found


@scene
def elites_in_files() -> Told:
    """Written and read again."""
    from loadmaster.learn.go2020.examples import GoElite, GoKey, load_elites, save_elites

    rng, keys = np.random.default_rng(2), [GoKey(-1, 4), GoKey(2, 1), GoKey(0, 3), GoKey(5, 0)]
    elites: list[GoElite | None] = []
    for candidates, labels, ops in ((6, 2, 9), (0, 0, 0), (4, 1, 7), (3, 2, 5)):
        sizes = ((candidates,), (candidates,), (3,), (labels,), (labels, ops), (labels, ops), (labels,))
        columns = [rng.integers(1, 99, size) for size in sizes]
        elites.append(GoElite(*columns) if candidates else None)
    with tempfile.TemporaryDirectory() as folder:
        save_elites(Path(folder) / "e.npz", keys, elites)
        back = load_elites(Path(folder) / "e.npz")
    found: Told = {"keys": sums_of(np.array(list(back)))}
    for key, elite in back.items():
        found |= {f"{key} none": [1.0]} if elite is None else told_of(str(key.line), elite)
        if elite is not None:
            found[f"{key.line} value"] = [float(elite.value)]
    return found


@scene
def what_regal_says() -> Told:
    from loadmaster.learn.regal2020.summary import summarise_policy

    found: Told = {}

    def numbers(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                numbers(f"{name} {key}", part)
        elif isinstance(value, list):
            flat = [part for part in value if isinstance(part, (int, float))]
            if flat:
                found[name] = sums_of(np.array(flat, np.float64))
            for at, part in enumerate(value):
                if isinstance(part, (dict, list)):
                    numbers(f"{name} {at}", part)
        elif isinstance(value, (int, float)):
            found[name] = [float(value)]

    for name, policy in (("unlike", "regal"), ("tasks", "gas"), ("tight", "regal")):
        problem = PROBLEMS[name]()
        plan = solve(problem, "heft", Budget(None, 1)).plan
        numbers(name, summarise_policy(problem, policy, plan).to_json())
    return found


# Plans


@contextmanager
def noted() -> Iterator[list[float]]:
    """What every plan that is scored by itself comes to, in order."""
    seen: list[float] = []

    def wrapped(plain: Any) -> Any:
        def score(self: Search, *given: Any) -> Any:
            result = plain(self, *given)
            seen.extend(np.ravel(np.stack([np.ravel(part) for part in result], -1)).astype(float).tolist())
            return result

        return score

    patches = [
        mock.patch.object(Search, name, wrapped(getattr(Search, name)))
        for name in ("score", "score_many", "score_fused")
    ]
    for each in patches:
        each.start()
    try:
        yield seen
    finally:
        for each in patches:
            each.stop()


METHODS = {
    "go": 24,
    "go:finetune=2,samples=4": 60,
    "go:tasks=fusion,checkpoint=none": 20,
    "go:tasks=[fusion,placement,schedule]": 24,
    "go-one:groups=12": 90,
    "go-one:groups=0,order=fifo,imitate=0.2,pooling=sum": 60,
    "go-one:tasks=[fusion,placement,schedule],groups=10,imitate=0.1": 70,
    "gas:evaluations=60,population=20": 60,
    "regal:evaluations=80,population=20": 80,
    "regal:policy=random,evaluations=40": 40,
    "regal:policy=constant,evaluations=40": 40,
    "regal:by=edges,blocks=8,evaluations=60,patience=10,population=10,finish=none": 60,
    "regal:by=op,direct=yes,evaluations=30,population=12": 30,
    "regal:plans_only=yes,checkpoint=none": 40,
    "gas:checkpoint=none,evaluations=30,population=12": 30,
    "regal:hedge=24,evaluations=420,population=24,patience=30,finish=none": 420,
    "placeto:samples=5,episodes=3,groups=8,every=3": 60,
    "placeto:checkpoint=none,samples=2,episodes=2,groups=10,every=4,again=0.5,once=step": 60,
    "placeto:checkpoint=none,samples=3,episodes=3,groups=6,every=2,failures=0.3,noise=0.1,traversal=random": 50,
    "hdp:samples=4,hidden=8,groups=4": 40,
    "rnn:samples=4,hidden=8": 40,
    "rnn:samples=3,hidden=8,features=published,noise=0.1,failures=0.1,root=no,order=fifo": 30,
    "learned-list": 40,
}


def planned(method: str, simulations: int) -> Told:
    found: Told = {}
    for name in ("unlike", "tight", "odd"):
        found |= {f"{name} {part}": told for part, told in _planned(method, name, simulations).items()}
    return found


def _planned(method: str, name: str, simulations: int) -> Told:
    import torch

    torch.set_num_threads(1)
    with noted() as seen:
        result = solve(PROBLEMS[name](), method, Budget(None, simulations), seed=5)
    plan = result.plan
    kernels = [] if plan.kernel is None else sums_of(plan.kernel)
    facts = [float(result.value), float(result.timeline.over_bytes), float(result.simulations)]
    return {"scored": [float(len(seen)), *sums_of(np.array(seen))], "plan": [*facts, *sums_of(plan.device), *kernels]}


@scene
def learned_list_of_a_wide_graph() -> Told:
    """In which ops have more readers, and read more, than the policy looks at."""
    problem = price(layers(8, 2, 5), PROBLEMS["unlike"]().cluster)
    with noted() as seen:
        result = solve(problem, "learned-list", Budget(None, 30), seed=5)
    return {"scored": [float(len(seen)), *sums_of(np.array(seen))], "plan": sums_of(result.plan.device)}


SCENES |= {method: partial(planned, method, count) for method, count in METHODS.items()}


def main() -> None:
    kept = json.loads(FILE.read_text()) if sys.argv[1:] else {}
    for name in sys.argv[1:] or SCENES:
        kept[name] = {part: [float(f"{each:.6g}") for each in told] for part, told in SCENES[name]().items()}
        print(name, len(kept[name]), flush=True)
    rows = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(part)}: {json.dumps(told)}" for part, told in kept[name].items())
        + "\n}"
        for name in SCENES
        if name in kept
    ]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
