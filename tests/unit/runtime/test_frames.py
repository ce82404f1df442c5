"""What Python's variables hold during an inference, against the live storages of a real one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.runtime.frames import held_by_frames, peak_of  # noqa: E402
from loadmaster.runtime.storages import LiveStorages  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(64), nn.Dropout(0.1)
        self.widen, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        wide = torch.relu(self.widen(self.norm(x)))
        unused = wide * 2  # lives until the frame is left, though nobody reads it
        narrow = self.drop(self.narrow(wide)).tanh()
        assert unused.shape == wide.shape
        return residual + narrow.view(*residual.shape)


class Looking(nn.Module):
    """Branches on numbers that do not depend on weights, as transformers does for its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        x = x * 1.5 if bool((places.diff() == 1).all()) else x.repeat(4, 1, 1)
        for block in self.blocks:
            x = block(x)
        return x


def real_peak(module: nn.Module, x: Tensor) -> int:
    with LiveStorages() as seen, torch.no_grad():
        module(x)  # meets every weight
        seen.peak_bytes = 0
        module(x)
        return seen.peak_bytes


def test_the_peak_of_a_real_inference_to_the_byte() -> None:
    module, x = Block().eval(), torch.randn(4, 512, 64)
    assert peak_of(held_by_frames(module, (x,)), {}) == real_peak(module, x)


def test_small_tensors_are_kept_for_whoever_asks_for_their_values() -> None:
    module, x = Looking().eval(), torch.randn(4, 512, 64)
    small = 511 * 8 + 511 + 1  # the differences, whether each is 1, and whether all are
    assert peak_of(held_by_frames(module, (x,)), {}) == real_peak(module, x) + small


def test_a_plan_holds_less() -> None:
    """It drops at the last use what a variable still names."""
    module, x = Looking().eval(), torch.randn(4, 512, 64)
    problem = price(capture(module, (x,), training=False), "1xh200")
    planned = simulate(problem, Plan.of(problem, [0] * problem.num_ops)).peak_bytes[0]
    assert planned < peak_of(held_by_frames(module, (x,)), {})


def test_workspaces_count_while_their_op_runs() -> None:
    module, x = Block().eval(), torch.randn(4, 512, 64)
    rows = held_by_frames(module, (x,))
    lowest = min(rows, key=lambda row: row.live_bytes)
    assert peak_of(rows, {lowest.signature: 10**9}) >= lowest.live_bytes + 10**9
    assert peak_of([], {}) == 0
