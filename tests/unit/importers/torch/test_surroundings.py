"""What a model's code keeps outside of its module is as it was after a load."""

from __future__ import annotations

import functools
import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import loadmaster as lm  # noqa: E402

KEPT: dict[str, Any] = {}
SEEN: list[Any] = []
STATE = torch.ones(4)
LEARNING = torch.nn.Linear(4, 4)


@functools.lru_cache
def _places(count: int) -> Any:
    return torch.arange(float(count))


def _remembered(count: int, made: dict[int, Any] = {}) -> Any:  # noqa: B006
    _remembered.last = made.setdefault(count, torch.arange(float(count)))  # type: ignore[attr-defined]
    return made[count]


def _own() -> Any:
    """A class whose code keeps tensors in every place that Python has for them."""
    store: dict[int, Any] = {}

    class Keeping(torch.nn.Module):
        table: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            for places in (KEPT, store):
                places.setdefault(4, torch.arange(4.0))
            STATE.add_(1)
            h = LEARNING(self.layer(x)) + KEPT[4] + store[4] + _places(4) + _remembered(4) + STATE
            SEEN.append(h)
            type(self).table = h
            return h.mean()

    return Keeping()


@pytest.mark.parametrize("training", [True, False])
def test_nothing_fake_is_left(training: bool) -> None:
    module, x = _own(), torch.ones(2, 4)
    graph = lm.load(module, inputs=(x,), training=training)
    assert (KEPT, SEEN, type(module).table, vars(_remembered)) == ({}, [], None, {})
    assert STATE.tolist() == [1.0] * 4
    wanted = LEARNING(module.layer(x)) + 4 * torch.arange(4.0) + 2
    assert module(x).item() == pytest.approx(wanted.mean().item())
    STATE.fill_(1)
    plan = lm.solve(lm.price(graph, "1xcpu"), "one-device", lm.Budget(None, 1))
    kept = dict(KEPT)
    with pytest.raises(lm.LoadmasterError):
        lm.apply(module, (x,), plan, devices=["cpu"])
    assert LEARNING.weight.grad is None and STATE.tolist() == [1.0] * 4
    assert list(KEPT) == list(kept) and all(KEPT[key] is kept[key] for key in kept)
    KEPT.clear(), SEEN.clear(), vars(_remembered).clear(), _remembered.__defaults__[0].clear()


def test_an_interrupt_waits_for_the_next_layer() -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
    try:
        _interrupts_between_layers()
    finally:
        signal.signal(signal.SIGINT, handler)


def _interrupts_between_layers() -> None:
    class Interrupted(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            SEEN.append("went on")
            return super().forward(x)

    module = torch.nn.Sequential(Interrupted(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        lm.load(module, inputs=(torch.ones(2, 4),))
    assert SEEN == ["went on"] and signal.getsignal(signal.SIGINT) is handler
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert lm.load(module[2], inputs=(torch.ones(2, 4),)).num_ops
    SEEN.clear()
