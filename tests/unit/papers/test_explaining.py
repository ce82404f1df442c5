"""Why a policy decides so: what is named is what its rule reads, and changing it moves the decision."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.importers import load  # noqa: E402
from loadmaster.papers import explaining  # noqa: E402
from loadmaster.report.policy import policy_text  # noqa: E402
from tests.unit.papers.lanes import lanes  # noqa: E402

KINDS = ("size", "place", "shape")


def told_of(monkeypatch: pytest.MonkeyPatch, reads: str | None):
    """What is told of a policy over single ops that puts an op by the sign of one feature, or of none."""
    problem = lanes(6)
    label = ints(np.arange(problem.num_ops))
    columns = {kind: np.random.default_rng(at).choice([-1.0, 1.0], len(label)) for at, kind in enumerate(KINDS)}

    def scores(group: int, changes: list[explaining.Change]) -> np.ndarray:
        read = [columns[reads][donor if reads in kinds else group] if reads else 0 for kinds, donor in changes]
        return np.array([[-each, each] for each in read])

    device = ints([scores(group, [(frozenset(), group)])[0].argmax() for group in range(len(label))])
    read = explaining.ReadPolicy(label, device, KINDS, scores)
    monkeypatch.setitem(explaining._READERS, "mine", lambda problem, seed: read)
    return explaining.explain_policy(problem, "mine")


@pytest.mark.parametrize("kind", KINDS)
def test_the_one_feature_that_a_rule_reads_is_named(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    told = told_of(monkeypatch, kind)
    assert {reason["because"] for reason in told["reasons"]} == {(kind,)}
    assert told["held"] == told["tested"] > 4 and kind in policy_text(told)


def test_a_policy_that_puts_all_on_one_device_has_no_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of(monkeypatch, None)
    assert told["tested"] == 0 and "no feature of one moves" in policy_text(told)


@pytest.mark.parametrize("model", ["inception-v3-b32", "transformer-xl-2"])
def test_most_decisions_of_the_shipped_go_move_with_what_is_named(model: str) -> None:
    told = explaining.explain_policy(price(load(f"zoo:{model}"), "2xp100-pcie"), "go")
    assert told["tested"] >= 8 and told["held"] >= 0.8 * told["tested"]
    assert sum(told["ops"]) == price(load(f"zoo:{model}"), "2xp100-pcie").num_ops


@pytest.mark.full
@pytest.mark.parametrize("policy", ["rnn", "hdp", "placeto"])
def test_most_decisions_of_the_others_do(policy: str) -> None:
    told = explaining.explain_policy(price(load("zoo:rnnlm-2"), "placeto-2"), policy)
    assert told["held"] >= 0.8 * told["tested"]
