"""What surrounds a run: a home that cannot be written, Ctrl-C in a search or a measurement, gradients from before."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import loadmaster as lm  # noqa: E402
from loadmaster.errors import LoadmasterError  # noqa: E402
from loadmaster.files import load_plan  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from loadmaster.runtime import kept, machine, measure  # noqa: E402
from loadmaster.runtime.timing import DeviceClock, Timing  # noqa: E402

HOMELESS = """
import sys
from loadmaster.cli.verbs import main
from loadmaster.runtime import machine
machine.SIZES, machine.LENGTHS = {"cpu": (16,)}, {"cpu": (64,)}
sys.argv = ["loadmaster", *sys.argv[1:]]
main()
"""
MODULE = """
import torch
def small():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(2, 4),)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "zoo:nmt", "--on", "2xp100-pcie", "--method", "heft", "--seconds", "1", "--experience"],
        ["measure", "mine:small"],
        ["tools", "list", "plans"],
    ],
)
def test_a_home_that_cannot_be_written(words: list[str], tmp_path: Path) -> None:
    """Not even by root: nothing can be made below a file."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "home").touch()
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ours = ("LOADMASTER_CACHE", "LOADMASTER_PLANS", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    kept_of = {name: value for name, value in os.environ.items() if name not in ours}
    environment = {**kept_of, "HOME": str(tmp_path / "home"), "PYTHONPATH": path}
    command = [sys.executable, "-c", HOMELESS, *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


PRINTING = """
import sys
from loadmaster.__main__ import main
sys.argv = ["loadmaster", "--version"]
try:
    main()
except SystemExit:
    print("shortened to …")
"""


def test_a_terminal_that_lacks_characters() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", PRINTING], env=environment, capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"shortened to ?\n")


SEARCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import loadmaster as lm
problem = lm.price(lm.load("zoo:nmt"), "4xp100-pcie")
def tell(search):
    if search.best is not None:
        print("found", flush=True)
result = lm.solve(problem, "anneal", lm.Budget(300), listener=tell)
assert result.interrupted
lm.save_plan(result.plan, problem, sys.argv[1])
"""


def test_ctrl_c_ends_a_search_with_its_best_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    child = subprocess.Popen([sys.executable, "-c", SEARCH, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "found\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)
    assert child.returncode == 0
    lm.check(load_plan(path), lm.price(lm.load("zoo:nmt"), "4xp100-pcie"))


def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "compiled")
    monkeypatch.setattr(machine, "SIZES", {"cpu": (16,)})
    monkeypatch.setattr(machine, "LENGTHS", {"cpu": (64,)})
    monkeypatch.setattr(measure, "PATIENCE_S", 0.0)
    cluster, plain, calls = measure.here(), DeviceClock.time, list[None]()

    def pressed(clock: DeviceClock, call: object) -> Timing:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(clock, call)  # type: ignore[arg-type]

    layers = [torch.nn.Linear(8 + i, 9 + i) for i in range(4)]
    graph = capture(torch.nn.Sequential(*layers), (torch.randn(2, 8),), training=False)
    monkeypatch.setattr(DeviceClock, "time", pressed)
    with pytest.raises(KeyboardInterrupt):
        measure.measure_ops(graph, cluster)
    assert len(measure.known_costs().times["cpu"]) == 2


def test_gradients_from_before_are_refused() -> None:
    torch.manual_seed(0)
    mine = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    plain, x = copy.deepcopy(mine), torch.randn(2, 4)
    result = lm.plan(mine, inputs=(x,), on="1xcpu", budget=lm.Budget(None, 1), optimizer="sgd")
    for module in (mine, plain):
        for weight in module.parameters():
            weight.grad = torch.ones_like(weight)
    mine_updates, updates = (torch.optim.SGD(module.parameters(), 0.1) for module in (mine, plain))
    step = lm.apply(mine, (x,), result, optimizer=mine_updates, devices=["cpu"])
    with pytest.raises(LoadmasterError, match="gradient from before"):
        step(x)
    for optimizer in (mine_updates, updates):
        optimizer.zero_grad()
    step(x)
    plain(x).mean().backward()
    updates.step()
    for one, other in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
