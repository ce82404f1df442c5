"""Ops nobody told about: counted, named, and known once their author says what they take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import loadmaster as lm
from loadmaster.cli.verbs import app
from loadmaster.errors import ImportFailed, InvalidSetting
from loadmaster.files import graph_to_json
from loadmaster.graph.assumptions import assumptions_of
from loadmaster.importers.torch import opaque

SIDE = 64


@torch.library.custom_op("loadmaster_test::product", mutates_args=())
def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


class Products(nn.Module):
    """One product by an op of its own after some that torch knows."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before

    def forward(self, a: Tensor) -> Tensor:
        for _ in range(self.before):
            a = a @ a
        return product(a, a)  # type: ignore[no-any-return]


@pytest.fixture
def nothing_told() -> Iterator[None]:
    yield
    opaque._TOLD.clear()


def loaded(before: int, assume: bool = False) -> lm.Graph:
    return lm.load(Products(before), inputs=(torch.zeros(SIDE, SIDE),), training=False, assume=assume)


def test_a_model_that_is_mostly_opaque_is_refused_by_name() -> None:
    with pytest.raises(ImportFailed, match="loadmaster_test"):
        loaded(1)
    assert list(loaded(1, assume=True).assumed.values()) == ["arithmetic"]


def test_a_small_share_is_accepted_and_said() -> None:
    found = assumptions_of(loaded(30))
    assert found is not None and found.ops == 1 and 0 < found.share < 0.1
    assert "loadmaster_test.product" in str(found)


def test_a_model_is_refused_whose_weights_only_an_unknown_op_reads() -> None:
    """Though 30 products that torch knows leave it a small share of the work."""

    class Weighted(Products):
        def __init__(self) -> None:
            super().__init__(before=30)
            self.weight = nn.Parameter(torch.zeros(SIDE, SIDE))

        def forward(self, a: Tensor) -> Tensor:
            return product(super().forward(a), self.weight)  # type: ignore[no-any-return]

    with pytest.raises(ImportFailed, match="up to 100 % of the weights is assumed"):
        lm.load(Weighted(), inputs=(torch.zeros(SIDE, SIDE),), training=False)


@pytest.mark.parametrize("op", [product, "loadmaster_test::product", torch.ops.loadmaster_test.product])
def test_its_author_makes_it_known(op: object, nothing_told: None) -> None:
    lm.cost_of(op, lambda a, b: 2 * a.numel() * b.shape[-1])
    graph = loaded(1)
    assert not graph.assumed
    assert int(graph.flops.sum()) == 2 * 2 * SIDE**3


@pytest.mark.parametrize("op", ["product", nn.Linear(1, 1), 3])
def test_what_names_no_op_is_refused(op: object) -> None:
    with pytest.raises(InvalidSetting, match="names no op"):
        lm.cost_of(op, lambda *_: 1)


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (torch.linalg.svdvals, 2 * 256**3),
        (lambda x: torch.linalg.inv(x), 2 * 256**3),
        (lambda x: torch.linalg.cholesky(x), 256**3 // 3),
        (lambda x: torch.linalg.solve(x, x), 2 * 256**3),
        (lambda x: torch.linalg.eigh(x)[1], 4 * 256**3),
        (lambda x: torch.linalg.qr(x)[0], 2 * 256**3),
    ],
)
def test_linear_algebra_counts_the_cube_of_its_side(function: object, least: int) -> None:
    class Step(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)  # type: ignore[no-any-return, operator]

    graph = lm.load(Step(), inputs=(torch.eye(256),), training=False, assume=True)
    assert least <= int(graph.flops.sum()) <= 25 * 256**3


def test_a_plan_says_what_is_assumed_and_needs_leave(tmp_path: Path) -> None:
    path, options = tmp_path / "g.json", ["--on", "2xp100-pcie"]
    path.write_text(json.dumps(graph_to_json(loaded(1, assume=True))))
    refused = CliRunner().invoke(app, ["plan", str(path), *options, "--simulations", "20"])
    assert refused.exit_code == 1 and "--assume" in refused.output
    page = ["--report", str(tmp_path / "page.html")]
    accepted = CliRunner().invoke(app, ["plan", str(path), *options, "--simulations", "20", "--assume", *page])
    assert accepted.exit_code == 0 and "of the work is assumed: 1 op" in accepted.output
    assert "of the work is assumed: 1 op" in (tmp_path / "page.html").read_text()
    shown = CliRunner().invoke(app, ["tools", "inspect", str(path), *options, "--json"])
    assert json.loads(shown.stdout)["assumed"]["ops"] == 1
