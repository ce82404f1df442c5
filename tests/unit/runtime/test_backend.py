"""torch.compile(backend="loadmaster"): an untouched loop, the same numbers, a limit that is kept or refused.

Most tests let AOTAutograd run its graphs eagerly instead of having Inductor compile them, which takes seconds a graph;
the cut of each graph is the same.
"""

from __future__ import annotations

import copy
import tomllib
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import loadmaster as lm
from loadmaster.errors import CannotRun, InvalidPlan, InvalidSetting, UnknownName
from loadmaster.runtime import backend, promise, spreading
from tests.eager_graphs import run_graphs

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Layered(nn.Module):
    """Residual layers whose insides are larger than what goes between them."""

    def __init__(self, layers: int = 10, width: int = 16, dropout: float = 0.0, breaks: bool = False) -> None:
        super().__init__()
        made = (nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width), nn.Dropout(dropout))
        self.layers = nn.ModuleList(copy.deepcopy(nn.Sequential(*made)) for _ in range(layers))
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = len(self.layers) // 2
        x = self.some(x, self.layers[:half])
        if self.breaks:
            torch._dynamo.graph_break()
        return self.some(x, self.layers[half:])

    def some(self, x: torch.Tensor, layers: Any) -> torch.Tensor:
        for layer in layers:
            x = x + layer(F.layer_norm(x, x.shape[-1:]))
        return x


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.fixture
def eager_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_by_inductor", run_graphs)


def batch(rows: int = 256) -> torch.Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(1))


def train(module: nn.Module, called: Any, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = called(batch()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def twins(**settings: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    module = Layered(**settings)
    return module, copy.deepcopy(module)


def under(module: nn.Module, limit: str, optimizer: Any = None) -> Any:
    options = {"memory_limit": limit} | ({"optimizer": optimizer} if optimizer else {})
    return torch.compile(module, backend=backend.loadmaster, options=options)


def unlimited_peak(**settings: Any) -> int:
    """Measured under a limit that is never reached."""
    torch._dynamo.reset()
    _, module = twins(**settings)
    optimizer = torch.optim.Adam(module.parameters())
    train(module, under(module, "1TiB", optimizer), optimizer, steps=2)
    known = promise.promise_of(2**40, torch.device("cpu"), optimizer)
    assert known.kept and not sum(planned.again for planned in known.graphs)
    torch._dynamo.reset()
    return known.measured_bytes


@pytest.mark.usefixtures("eager_graphs")
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_limit_is_kept_and_changes_no_result(dropout: float) -> None:
    plain, free = twins(dropout=dropout)
    module = copy.deepcopy(free)
    roomy = torch.optim.Adam(free.parameters())
    expected = train(free, under(free, "1TiB", roomy), roomy)
    limit = round(0.7 * promise.promise_of(2**40, torch.device("cpu"), roomy).measured_bytes)
    torch._dynamo.reset()
    optimizer = torch.optim.Adam(module.parameters())
    assert train(module, under(module, f"{limit}B", optimizer), optimizer, steps=6)[:4] == expected
    known = promise.promise_of(limit, torch.device("cpu"), optimizer)
    assert sum(planned.again for planned in known.graphs) > 0
    assert known.kept and 0 < known.measured_bytes <= limit
    if not dropout:
        eager = train(plain, plain, torch.optim.Adam(plain.parameters()))
        assert eager == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("eager_graphs")
def test_what_was_planned_is_what_a_step_takes() -> None:
    """Where nothing is fused, elementwise results that the model leaves out are there for a moment."""
    _, module = twins()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    train(module, under(module, "1TiB", optimizer), optimizer, steps=2)
    known = promise.promise_of(2**40, torch.device("cpu"), optimizer)
    assert known.predicted_bytes == pytest.approx(known.measured_bytes, rel=0.15)


@pytest.mark.usefixtures("eager_graphs")
def test_a_step_above_its_limit_is_compiled_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Accumulated gradients stay between steps, which no graph tells before."""
    peak = unlimited_peak()
    _, module = twins()
    optimizer = torch.optim.Adam(module.parameters())
    limit = round(0.85 * peak)
    called = under(module, f"{limit}B", optimizer)
    held = []
    for _ in range(8):
        loss = called(batch()).square().mean()
        held.append(torch.empty(limit // 12, dtype=torch.uint8))  # as a loop that keeps tensors of each step
        loss.backward()
        optimizer.step()
        held = held[-1:]
    known = promise.promise_of(limit, torch.device("cpu"), optimizer)
    assert known.tightened_bytes > 0 and known.kept
    told = capsys.readouterr().err
    assert "above" in told and "compiled again" in told


@pytest.mark.usefixtures("eager_graphs")
def test_a_limit_that_cannot_be_kept_is_refused_and_says_what_would_do() -> None:
    peak = unlimited_peak()
    _, module = twins()
    optimizer = torch.optim.Adam(module.parameters())
    with pytest.raises(Exception, match="give at least") as caught:
        train(module, under(module, f"{peak // 5}B", optimizer), optimizer)
    needed = str(caught.value).partition("give at least ")[2].split(",")[0].split("\n")[0]
    torch._dynamo.reset()
    more = backend.limit_of(needed.replace(" ", "")) + 2**17  # the text is rounded
    train(module, under(module, f"{more}B", optimizer), optimizer)


@pytest.mark.usefixtures("eager_graphs")
def test_an_optimizer_that_alone_takes_more_is_refused_before_a_step() -> None:
    _, module = twins()
    optimizer = torch.optim.Adam(module.parameters())
    weights = sum(weight.nbytes for weight in module.parameters())
    with pytest.raises(Exception, match="optimizer's step alone"):
        under(module, f"{3 * weights}B", optimizer)(batch())


@pytest.mark.parametrize(
    ("kind", "settings", "copies"),
    [
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.AdamW, {}, 2),
        (torch.optim.Adam, {"amsgrad": True, "fused": True}, 3),
        (torch.optim.RMSprop, {}, 1),
    ],
)
def test_state_that_an_optimizer_will_make(kind: Any, settings: dict[str, Any], copies: int) -> None:
    weight = nn.Parameter(torch.randn(8, 4))
    optimizer = kind([weight], 0.1, **settings)
    assert promise.state_to_come(optimizer) == copies * weight.nbytes
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    assert promise.state_to_come(optimizer) == (copies * weight.nbytes if not optimizer.state[weight] else 0)


@pytest.mark.usefixtures("eager_graphs")
def test_graph_breaks_short_batches_and_evaluation_under_a_limit() -> None:
    peak = unlimited_peak(breaks=True)
    plain, module = twins(breaks=True)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    other = torch.optim.SGD(plain.parameters(), 0.1)
    called = under(module, f"{2 * peak}B", optimizer)
    for rows in (256, 256, 100, 256):
        for model, run, updates in ((plain, plain, other), (module, called, optimizer)):
            updates.zero_grad()
            run(batch(rows)).square().mean().backward()
            updates.step()
            with torch.no_grad():
                model.eval()
                run(batch(40))
                model.train()
    for mine, other_weight in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other_weight, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("eager_graphs")
def test_a_longer_batch_than_that_of_an_open_graph_counts() -> None:
    known = promise.Promise(2**30, torch.device("cpu"), None)
    assert known.larger((100, False)) == 1.0
    assert known.larger((25, True)) == 4.0
    assert known.larger((200, True)) == 1.0


@pytest.mark.usefixtures("eager_graphs")
def test_without_an_optimizer_calls_are_counted() -> None:
    _, module = twins()
    called = under(module, "900GiB")
    for _ in range(4):
        called(batch()).square().mean().backward()
    known = promise.promise_of(900 * 2**30, torch.device("cpu"), None)
    assert known.kept and known.measured_bytes > 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"memory": "5GiB"}, UnknownName, "memory_limit"),
        ({"memory_limit": 5}, InvalidSetting, "unit"),
        ({"memory_limit": "5000000"}, InvalidSetting, "unit"),
        ({"memory_limit": "5 gigs"}, InvalidSetting, "size"),
        ({"optimizer": None}, InvalidSetting, "memory_limit"),
        ({"memory_limit": "5GiB", "optimizer": "adam"}, InvalidSetting, "optimizer"),
        ({"memory_limit": "5GiB", "plan": "plan.json"}, InvalidSetting, "plan"),
        ({"devices": ["cpu"]}, InvalidSetting, "plan"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        backend.check_options(options)


def test_an_older_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    with pytest.raises(CannotRun, match=r"2\.11"):
        backend.check_options({"memory_limit": "5GiB"})
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    backend.check_options({"memory_limit": "5GiB"})


def test_inductor_compiles_a_step_that_keeps_its_limit() -> None:
    """Without a limit every bit is torch.compile's; with one what is made again is, too."""
    found = []
    for options in (None, {}, {"memory_limit": "1TiB"}):
        torch._dynamo.reset()
        _, module = twins(layers=2)
        optimizer = torch.optim.Adam(module.parameters())
        if options:
            options |= {"optimizer": optimizer}  # type: ignore[dict-item]
        how = {} if options is None else {"backend": backend.loadmaster, "options": options}
        found.append(train(module, torch.compile(module, **how), optimizer, steps=3))
    assert found[0] == found[1] == found[2]
    known = promise.promise_of(2**40, torch.device("cpu"), optimizer)
    assert known.predicted_bytes == pytest.approx(known.measured_bytes, rel=0.03)


def test_a_function_without_weights() -> None:
    assert torch.equal(torch.compile(lambda x: x.sin() + 1, backend=backend.loadmaster)(X), X.sin() + 1)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleList(nn.Linear(8, 64) for _ in range(2))
        self.out = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [torch.sigmoid(row(x)) for row in self.rows]
        return sum(self.out(one).tanh().sum() for one in made)  # type: ignore[return-value]


def gradients(module: nn.Module, called: Any) -> list[torch.Tensor]:
    module.zero_grad()
    loss = called(X)
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in module.parameters() if weight.grad is not None)]


def saved_plan(module: nn.Module, path: Path, device: Callable[[str, int], int]) -> Path:
    result = lm.plan(module, inputs=(X,), on="2xp100-pcie", method="one-device", budget=lm.Budget(None, 1))
    place = [device(scope, number) for number, scope in enumerate(result.problem.graph.scope)]
    lm.save_plan(lm.Plan.of(result.problem, place), result.problem, path)
    return path


def test_a_plan_says_where_each_module_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Wide()
    path = saved_plan(module, tmp_path / "plan.json", lambda scope, _: int(scope == "rows.1"))
    seen: list[tuple[tuple[int, ...], str]] = []

    def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        seen.append((tuple(tensor.shape), str(device)))
        return tensor  # there is but one device here: it says where it would go

    monkeypatch.setattr(spreading, "moved", moved)
    options = {"plan": path, "devices": ["cpu", "meta"]}
    twin = copy.deepcopy(module)
    called = torch.compile(twin, backend=backend.loadmaster, options=options)
    assert all(map(torch.equal, gradients(twin, called), gradients(module, module)))
    there = {shape for shape, device in seen if device == "meta"}
    assert (64, 8) in there and (64,) in there and (4, 8) in there  # the weight, the bias and what they are given
    assert (3, 64) not in there  # the other module's weight


def test_a_plan_that_splits_a_module_is_refused(tmp_path: Path) -> None:
    module = Wide()
    path = saved_plan(module, tmp_path / "plan.json", lambda scope, number: number % 2)
    with pytest.raises(Exception, match=r"splits \d+ modules") as caught:
        torch.compile(module, backend=backend.loadmaster, options={"plan": path, "devices": ["cpu", "cpu"]})(X)
    assert isinstance(caught.value, InvalidPlan) or "InvalidPlan" in str(caught.value)


def test_paths_and_the_entry_point() -> None:
    assert spreading._plain("L['self']._modules['layers']._modules['0'].wide") == "layers.0.wide"
    assert spreading._plain("L['s'].b.0") == "b.0" and spreading._plain("L['fn']") == ""
    path = Path(__file__).parents[3] / "pyproject.toml"
    points = tomllib.loads(path.read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    where, _, name = points["loadmaster"].partition(":")
    assert getattr(import_module(where), name) is backend.loadmaster


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
