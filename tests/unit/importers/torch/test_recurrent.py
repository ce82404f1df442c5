"""Dropout between recurrent layers is in the traced step, in the places where torch's own kernels drop."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from loadmaster.importers.torch.export import capture  # noqa: E402


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("both_ways", [False, True])
def test_one_dropout_between_each_two_layers(kind: type[nn.RNNBase], both_ways: bool) -> None:
    layer = kind(4, 3, 3, dropout=0.4, bidirectional=both_ways)
    inputs = (torch.ones(2, 1, 4),)
    counts = [
        sum(
            name.startswith("native_dropout") and "backward" not in name
            for name in capture(layer, inputs, training=mode).op_name
        )
        for mode in (True, False)
    ]
    assert counts == [2, 0]
