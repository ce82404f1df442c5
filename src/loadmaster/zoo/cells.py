"""Image classifiers made of searched cells: NASNet-A, AmoebaNet-D, and random cells of the same kind.

A cell reads the outputs of the two cells before it: state 0 is the nearest, state 1 the one before that. Each block
adds two ops on earlier states and makes the next state. Not modelled: scheduled drop path, which would chain the ops
of a cell that are independent of each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.zoo.pieces import Auxiliary, Model, Pair, classifier

Block = tuple[str, int, str, int]  # op and the state it reads, twice
IDENTITY = "identity"


@dataclass(frozen=True)
class Wiring:
    """Which of the earlier outputs each block of a cell reads, and by what.

    Attributes:
        joined: states that make the output; none given: the blocks that no block reads.
    """

    blocks: tuple[Block, ...]
    joined: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        read = {state for _, left, _, right in self.blocks for state in (left, right)}
        return self.joined or tuple(i for i in range(2, len(self.blocks) + 2) if i not in read)


# Zoph et al. 2017, arXiv 1707.07012, figure 4; states 1 and 3 are passed on although read, as the authors' model does.
NASNET_NORMAL = Wiring(
    (
        ("sep5", 0, "sep3", 1),
        ("sep5", 1, "sep3", 1),
        ("avg3", 0, IDENTITY, 1),
        ("avg3", 1, "avg3", 1),
        ("sep3", 0, IDENTITY, 0),
    ),
    (1, 2, 3, 4, 5, 6),
)
NASNET_REDUCTION = Wiring(
    (
        ("sep5", 0, "sep7", 1),
        ("max3", 0, "sep7", 1),
        ("avg3", 0, "sep5", 1),
        (IDENTITY, 3, "avg3", 2),
        ("sep3", 2, "max3", 0),
    ),
    (3, 4, 5, 6),
)

# AmoebaNet-D of Real et al. 2018, arXiv 1802.01548; as in the authors' model the normal cell also passes state 0 on.
AMOEBANET_NORMAL = Wiring(
    (
        ("conv1", 1, "max3", 1),
        (IDENTITY, 1, "conv7", 0),
        ("conv1", 0, "conv7", 0),
        ("max3", 2, IDENTITY, 2),
        ("avg3", 1, "conv1", 5),
    ),
    (0, 3, 4, 6),
)
AMOEBANET_REDUCTION = Wiring(
    (
        ("max2", 0, "max3", 0),
        (IDENTITY, 2, "conv3", 1),
        ("conv7", 2, "max3", 2),
        (IDENTITY, 3, "max2", 1),
        ("avg3", 2, "conv1", 3),
    )
)


class ReluConvNorm(nn.Sequential):
    """A convolution of activated inputs, normalised."""

    def __init__(self, inputs: int, outputs: int, kernel: Pair, stride: Pair = 1, padding: Pair = 0) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        super().__init__(nn.ReLU(), conv, nn.BatchNorm2d(outputs, eps=0.001))


class Separable(nn.Sequential):
    """ReLU, depthwise, pointwise, batch normalisation, all twice (arXiv 1707.07012, appendix A)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        layers: list[nn.Module] = []
        for width, step in ((inputs, stride), (outputs, 1)):
            depthwise = nn.Conv2d(width, width, kernel, step, kernel // 2, groups=width, bias=False)
            layers += [nn.ReLU(), depthwise, nn.Conv2d(width, outputs, 1, bias=False)]
            layers.append(nn.BatchNorm2d(outputs, eps=0.001))
        super().__init__(*layers)


class FactorizedReduction(nn.Module):
    """Half the size without losing a pixel to the stride: two 1x1 convolutions, the second shifted by one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        out: Tensor = self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))
        return out


def bottleneck(inputs: int, outputs: int, *middle: nn.Module) -> nn.Module:
    inner = outputs // 4
    return nn.Sequential(ReluConvNorm(inputs, inner, 1), *middle, ReluConvNorm(inner, outputs, 1))


def make_op(kind: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    inner = outputs // 4
    match kind:
        case "identity" if stride == 1 and inputs == outputs:
            return nn.Identity()
        case "identity":
            return FactorizedReduction(inputs, outputs) if stride == 2 else ReluConvNorm(inputs, outputs, 1)
        case "sep3" | "sep5" | "sep7":
            return Separable(inputs, outputs, int(kind[-1]), stride)
        case "conv1":
            return ReluConvNorm(inputs, outputs, 1, stride)
        case "conv3":
            return bottleneck(inputs, outputs, ReluConvNorm(inner, inner, 3, stride, 1))
        case "conv7":
            across = ReluConvNorm(inner, inner, (1, 7), (1, stride), (0, 3))
            return bottleneck(inputs, outputs, across, ReluConvNorm(inner, inner, (7, 1), (stride, 1), (3, 0)))
    pools: dict[str, nn.Module] = {
        "avg3": nn.AvgPool2d(3, stride, padding=1, count_include_pad=False),
        "max3": nn.MaxPool2d(3, stride, padding=1),
        "max2": nn.MaxPool2d(2, stride, ceil_mode=True),
    }
    return pools[kind] if inputs == outputs else nn.Sequential(pools[kind], ReluConvNorm(inputs, outputs, 1))


@dataclass(frozen=True)
class MapSize:
    """Where a tensor stands in the network: its channels, and by how much the image has shrunk."""

    channels: int
    shrink: int


class Cell(nn.Module):
    """Blocks that read two cells before them; their unread outputs are put together."""

    def __init__(self, wiring: Wiring, now: MapSize, before: MapSize | None, channels: int, stride: int) -> None:
        super().__init__()
        self.wiring = wiring
        self.place = MapSize(channels * len(wiring.outputs), now.shrink * stride)
        self.squeeze = ReluConvNorm(now.channels, channels, 1)
        self.adjust = adjustment(now, before, channels)
        # The first cell has no cell before it: state 1 is then its input as it comes.
        widths = [channels, channels if before else now.channels] + [channels] * len(wiring.blocks)
        self.ops = nn.ModuleList()
        for left, i, right, j in wiring.blocks:
            for kind, state in ((left, i), (right, j)):
                self.ops.append(make_op(kind, widths[state], channels, stride if state < 2 else 1))

    def forward(self, now: Tensor, before: Tensor) -> Tensor:
        states = [self.squeeze(now), self.adjust(before)]
        for k, (_, left, _, right) in enumerate(self.wiring.blocks):
            states.append(self.ops[2 * k](states[left]) + self.ops[2 * k + 1](states[right]))
        return torch.cat([states[i] for i in self.wiring.outputs], dim=1)


def adjustment(now: MapSize, before: MapSize | None, channels: int) -> nn.Module:
    """What brings the older input to the size and width of the cell (arXiv 1707.07012, appendix A)."""
    if before is None or (before.shrink == now.shrink and before.channels == channels):
        return nn.Identity()
    if before.shrink != now.shrink:
        return FactorizedReduction(before.channels, channels)
    return ReluConvNorm(before.channels, channels, 1)


@dataclass(frozen=True)
class CellStacking:
    """How cells are stacked: stem cells, then three groups of normal cells with reductions between them.

    Attributes:
        channels: of the first group; each reduction doubles it.
        cells: normal cells in all, a multiple of 3.
        stem: channels of the first convolution.
        stem_shares: stem reductions have channels // share.
        long_skip: the cell after a reduction skips over it, as in NASNet-A large.
    """

    normal: Wiring
    reduction: Wiring
    channels: int
    cells: int
    stem: int
    stem_shares: tuple[int, ...] = ()
    long_skip: bool = False

    def __iter__(self) -> Iterator[tuple[Wiring, int, int]]:
        """Wiring, channels and stride of every cell after the stem convolution."""
        yield from ((self.reduction, self.channels // share, 2) for share in self.stem_shares)
        for group in range(3):
            if group:
                yield self.reduction, self.channels << group, 2
            yield from [(self.normal, self.channels << group, 1)] * (self.cells // 3)


class CellNetwork(nn.Module):
    """Stacks of normal cells between reduction cells."""

    def __init__(self, layout: CellStacking, classes: int, auxiliary_size: int = 0) -> None:
        super().__init__()
        self.layout = layout
        large = bool(layout.stem_shares)
        conv = nn.Conv2d(3, layout.stem, 3, stride=2 if large else 1, padding=0 if large else 1, bias=False)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(layout.stem, eps=0.001))
        self.cells = nn.ModuleList()
        before: MapSize | None = None
        now = MapSize(layout.stem, 1)
        for wiring, channels, stride in layout:
            cell = Cell(wiring, now, before, channels, stride)
            before, now = (before if self.skips(len(self.cells)) else now), cell.place
            self.cells.append(cell)
        # Two thirds up, before the last reduction (arXiv 1707.07012, appendix A).
        self.branch_after = len(self.cells) - layout.cells // 3 - 2
        joined = layout.channels * 2 * len(layout.normal.outputs)
        self.auxiliary = Auxiliary(joined, auxiliary_size, classes) if auxiliary_size else None
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(now.channels, classes)

    def skips(self, index: int) -> bool:
        stems, group = len(self.layout.stem_shares), self.layout.cells // 3
        return self.layout.long_skip and index >= stems and (index - stems) % (group + 1) == group

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        before = now = self.stem(x)
        side = now
        for i, cell in enumerate(self.cells):
            before, now = (before if self.skips(i) else now), cell(now, before)
            side = now if i == self.branch_after else side
        logits: Tensor = self.head(self.dropout(F.relu(now).mean((2, 3))))
        if targets is None:
            return logits
        loss = F.cross_entropy(logits, targets)
        return loss if self.auxiliary is None else loss + 0.4 * F.cross_entropy(self.auxiliary(F.relu(side)), targets)


def halved(size: int, times: int) -> int:
    for _ in range(times):
        size = (size + 1) // 2
    return size


def nasnet(
    training: bool, cells: int, channels: int, stem: int, long_skip: bool, batch: int, size: int, classes: int = 1000
) -> Model:
    """NASNet-A (N @ F): N = cells / 3, F = 24 x channels (arXiv 1707.07012, section 3 and appendix A)."""
    layout = CellStacking(NASNET_NORMAL, NASNET_REDUCTION, channels, cells, stem, (4, 2), long_skip)
    side = halved((size - 1) // 2, 3) if training else 0
    return classifier(lambda: CellNetwork(layout, classes, side), training, batch, size, classes)


def amoebanet(training: bool, cells: int, channels: int, batch: int, size: int = 224, classes: int = 1000) -> Model:
    """AmoebaNet-D (L, F): L = cells, F = channels (arXiv 1802.01548; sizes as in GPipe, arXiv 1811.06965, table 1)."""
    layout = CellStacking(AMOEBANET_NORMAL, AMOEBANET_REDUCTION, channels, cells, channels // 4, (2, 1))
    return classifier(lambda: CellNetwork(layout, classes), training, batch, size, classes)


def searched(
    training: bool, normal: tuple[Block, ...], reduction: tuple[Block, ...], cells: int, channels: int, batch: int
) -> Model:
    """A CIFAR-10 network of one normal and one reduction cell (arXiv 1802.03268, section 2.4)."""
    layout = CellStacking(Wiring(normal), Wiring(reduction), channels, cells, 3 * channels)
    return classifier(lambda: CellNetwork(layout, 10), training, batch, 32, 10)
