"""Remedies: every change that is told makes the step fit when it is made by hand, and none is told that does not."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from loadmaster import Budget, Cluster, Graph, price, solve  # noqa: E402
from loadmaster.graph import STATE  # noqa: E402
from loadmaster.importers.torch.export import capture, default_dtype  # noqa: E402
from loadmaster.report.remedies import FitVerdict, eight_bit_states, rows_of_inputs, verdict  # noqa: E402

BUDGET = Budget(None, 48)
WIDTH, DEPTH, BATCH = 256, 4, 512
WEIGHTS = DEPTH * (WIDTH * WIDTH + WIDTH) * 4


def mlp(settings: Mapping[str, Any]) -> Graph:
    return captured(settings.get("dtype"), settings.get("batch", BATCH), settings.get("optimizer", "adam"))


@cache
def captured(dtype: str | None, batch: int, optimizer: str) -> Graph:
    with default_dtype(dtype):
        layers = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        module, inputs = nn.Sequential(*layers), torch.zeros(batch, WIDTH)
    return capture(module, inputs, training=True, optimizer=optimizer, name="mlp")


@cache
def asked(memory_bytes: int) -> FitVerdict:
    return verdict(mlp, Cluster.preset(f"{memory_bytes}b"), {"optimizer": "adam"}, budget=BUDGET)


def test_what_fits_gets_no_advice() -> None:
    found = asked(2**30)
    assert found.fits and not found.changes and found.need_bytes <= found.have_bytes


@pytest.mark.parametrize("share", [0.75, 0.5, 0.3])
def test_every_change_makes_it_fit_and_fewer_do_not(share: float) -> None:
    need = asked(2**30).need_bytes
    have = int(need * share)
    found = asked(have)
    assert not found.fits and found.changes
    counts = {change.what.count(" and ") + 1 for change in found.changes}
    assert len(counts) == 1
    for change in found.changes:
        assert change.peak_bytes <= have
        assert made(change.command, "8-bit" in change.what, have)
        if counts == {2}:
            for command, small in alone(change.command, "8-bit" in change.what):
                assert not made(command, small, have), f"{command} is enough"
    assert list(found.changes) == sorted(found.changes, key=lambda change: (change.cost, change.step_ns))


@cache
def made(command: str, small_states: bool, have: int) -> bool:
    """Whether a plan with those options fits, by the words of the command."""
    given = dict(re.findall(r"--(\w+) (\S+)", command))
    settings = {name: int(value) if name == "batch" else value for name, value in given.items()}
    graph = mlp({name: settings[name] for name in ("dtype", "batch", "optimizer") if name in settings})
    cluster = Cluster.preset(str(settings.get("on", f"{have}b")))
    spec = str(settings.get("with", "auto"))
    for objective in ("step-time", "peak-memory"):
        problem = price(eight_bit_states(graph) if small_states else graph, cluster, objective=objective)
        if solve(problem, spec, BUDGET, 0).fits:
            return True
    return False


def alone(command: str, small: bool) -> list[tuple[str, bool]]:
    options = re.findall(r"--\w+ \S+", command.replace("--objective peak-memory", ""))
    return [(option, False) for option in options] + ([("", True)] if small else [])


def test_more_devices_are_not_told_where_one_update_is_too_large() -> None:
    """The update of one weight reads it, its gradient and two states: 16 bytes an element on one device."""

    def one(settings: Mapping[str, Any]) -> Graph:
        with default_dtype(settings.get("dtype")):
            module, inputs = nn.Linear(1000, 1000, bias=False), torch.zeros(2, 1000)
        return capture(module, inputs, training=True, optimizer=settings.get("optimizer", "adam"), name="one")

    found = verdict(one, Cluster.preset("12MB"), {"optimizer": "adam"}, budget=BUDGET)
    assert not found.fits and found.need_bytes >= 16_000_000
    assert found.changes and not any("device" in change.what for change in found.changes)


def test_eight_bit_states_are_a_quarter_and_a_little() -> None:
    graph = mlp({})
    small = eight_bit_states(graph)
    before, after = (int(g.nbytes[(g.role == STATE) & (g.alias_of < 0)].sum()) for g in (graph, small))
    assert before == 2 * WEIGHTS
    large = 2 * DEPTH * WIDTH * WIDTH
    assert after == large + large // 256 * 4 + 2 * DEPTH * WIDTH * 4  # biases are too small to be packed
    assert rows_of_inputs(graph) == BATCH
