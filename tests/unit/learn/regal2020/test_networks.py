"""Sums and chances by rows, which REGAL's networks are made of, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.learn.features import features_of  # noqa: E402
from loadmaster.learn.regal2020.networks import batch_of, log_softmax_by, mean_by  # noqa: E402
from tests.graphs.tiny import chain, diamond, pair  # noqa: E402


def test_chances_are_within_each_row_however_large_scores_are() -> None:
    scores = torch.tensor([1000.0, -5.0, 1000.0, 1.0, 1.0 + np.log(3)])
    found = log_softmax_by(scores, torch.tensor([0, 1, 0, 2, 2]), 3)
    assert found.tolist() == pytest.approx([-np.log(2), 0.0, -np.log(2), np.log(0.25), np.log(0.75)], abs=1e-5)


def test_means_are_of_each_row_and_nothing_where_there_are_none() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 0.0], [8.0, 8.0]])
    assert mean_by(values, torch.tensor([2, 2, 0]), 3).tolist() == [[8.0, 8.0], [0.0, 0.0], [2.0, 2.0]]


def test_graphs_of_a_batch_lie_behind_each_other() -> None:
    many = [features_of(price(chain(), pair())), features_of(price(diamond(), "3xp100-pcie"))]
    batch = batch_of(many)
    assert batch.num_ops == (3, 4) and batch.num_pairs == (6, 12)
    assert batch.graph_of_op.tolist() == [0, 0, 0, 1, 1, 1, 1] and batch.program.tolist() == list(range(7))
    assert batch.op_of_pair.tolist() == [0, 0, 1, 1, 2, 2, *[3] * 3, *[4] * 3, *[5] * 3, *[6] * 3]
    assert batch.device_of_pair.tolist() == [0, 1] * 3 + [2, 3, 4] * 4
    edges = sorted(zip(batch.before.tolist(), batch.after.tolist(), strict=True))
    assert edges == [(0, 1), (1, 2), (3, 4), (3, 5), (4, 6), (5, 6)]
    orders = [batch.mirror[:3].tolist(), batch.mirror[3:].tolist()]
    assert orders == [np.argsort(many[0].mirror).tolist(), (np.argsort(many[1].mirror) + 3).tolist()]
