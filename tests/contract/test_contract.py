"""The fast part of the cases: each is carried as eager torch trains it, or refused by name. The rest: make contract."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.contract import listed  # noqa: E402
from tests.contract.cases import Case, outcome_of  # noqa: E402

FAST = [case for case in listed() if case.fast]


@pytest.mark.parametrize("case", FAST, ids=[f"{case.group}: {case.name}" for case in FAST])
def test_equal_or_refused(case: Case) -> None:
    found = outcome_of(case, seed=0, verify=case.needs_verify)
    assert found.kind == case.expected, found.said


def test_a_step_proves_itself_on_its_example_and_on_the_first_batch() -> None:
    """By default, and with the random streams of torch, Python and NumPy where they were."""
    import random

    import numpy as np

    import loadmaster as lm
    from tests.contract.models import Dropping, batches

    torch.manual_seed(0)
    net, data = Dropping(), batches()
    graph = lm.load(net, inputs=data[0], training=True, optimizer="adam")
    result = lm.solve(lm.price(graph, "2xp100-pcie"), "random", lm.Budget(None, 3), seed=1)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    step = lm.apply(net, data[0], result, devices=["cpu", "cpu"])
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert step.verified.startswith("equal to the module in every bit") and "first call" not in step.verified
    step(*data[1])
    assert "batch of the first call" in step.verified
    plain = lm.apply(Dropping(), data[0], result, devices=["cpu", "cpu"], verify=False)
    assert repr(plain).splitlines()[0] == "not verified: verify=False"


def test_where_memory_is_short_the_step_says_that_it_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    import loadmaster as lm
    from loadmaster.runtime import proving
    from tests.contract.models import Net, batches

    net, data = Net(), batches()
    graph = lm.load(net, inputs=data[0], training=True, optimizer="adam")
    result = lm.solve(lm.price(graph, "2xp100-pcie"), "random", lm.Budget(None, 3), seed=1)
    monkeypatch.setattr(proving, "free_bytes", lambda device: 1000)
    with pytest.warns(UserWarning, match="not verified: a copy of the module"):
        step = lm.apply(net, data[0], result, devices=["cpu", "cpu"])
    assert "free" in repr(step).splitlines()[0]


def test_the_guard_runs_no_more_python_for_more_layers() -> None:
    """Layers are compared in C: a layer must not cost a call of Python."""
    import loadmaster as lm
    from tests.contract.models import batches
    from tests.work import calls_in

    counts = []
    for layers in (4, 64):
        stack = [part for _ in range(layers) for part in (torch.nn.Linear(6, 6), torch.nn.Dropout(0.1))]
        net, data = torch.nn.Sequential(*stack), batches()
        graph = lm.load(net, inputs=data[0], training=True, optimizer="adam")
        result = lm.solve(lm.price(graph, "2xp100-pcie"), "random", lm.Budget(None, 3), seed=1)
        step = lm.apply(net, data[0], result, devices=["cpu", "cpu"], verify=False)
        assert step.guard is not None
        counts.append(calls_in(step.guard.check))
    assert counts[0] == counts[1] < 100, counts
