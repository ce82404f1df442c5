"""Image classifiers: Inception-V3, ResNet and the vision transformer, at the sizes of their publications."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.zoo.pieces import Auxiliary, ConvNorm, Model, classifier


class Branches(nn.Module):
    """Branches that read the same tensor; their outputs are joined along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], dim=1)


def average_pool() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1)


def inception_a(inputs: int, pooled: int) -> nn.Module:
    """The 35x35 module: 5x5 factored into two 3x3 (Szegedy et al. 2015, arXiv 1512.00567, figure 5)."""
    return Branches(
        one=ConvNorm(inputs, 64, 1),
        five=nn.Sequential(ConvNorm(inputs, 48, 1), ConvNorm(48, 64, 5, padding=2)),
        three=nn.Sequential(ConvNorm(inputs, 64, 1), ConvNorm(64, 96, 3, padding=1), ConvNorm(96, 96, 3, padding=1)),
        pool=nn.Sequential(average_pool(), ConvNorm(inputs, pooled, 1)),
    )


def reduction_a(inputs: int) -> nn.Module:
    """35x35 to 17x17 without a bottleneck (figure 10)."""
    return Branches(
        three=ConvNorm(inputs, 384, 3, stride=2),
        deep=nn.Sequential(ConvNorm(inputs, 64, 1), ConvNorm(64, 96, 3, padding=1), ConvNorm(96, 96, 3, stride=2)),
        pool=nn.MaxPool2d(3, stride=2),
    )


def wide(inputs: int, outputs: int) -> nn.Module:
    return ConvNorm(inputs, outputs, (1, 7), padding=(0, 3))


def tall(inputs: int, outputs: int) -> nn.Module:
    return ConvNorm(inputs, outputs, (7, 1), padding=(3, 0))


def inception_b(inputs: int, inner: int) -> nn.Module:
    """The 17x17 module: 7x7 factored into 1x7 and 7x1 (figure 6)."""
    return Branches(
        one=ConvNorm(inputs, 192, 1),
        seven=nn.Sequential(ConvNorm(inputs, inner, 1), wide(inner, inner), tall(inner, 192)),
        deep=nn.Sequential(
            ConvNorm(inputs, inner, 1), tall(inner, inner), wide(inner, inner), tall(inner, inner), wide(inner, 192)
        ),
        pool=nn.Sequential(average_pool(), ConvNorm(inputs, 192, 1)),
    )


def reduction_b(inputs: int) -> nn.Module:
    """17x17 to 8x8."""
    return Branches(
        three=nn.Sequential(ConvNorm(inputs, 192, 1), ConvNorm(192, 320, 3, stride=2)),
        seven=nn.Sequential(ConvNorm(inputs, 192, 1), wide(192, 192), tall(192, 192), ConvNorm(192, 192, 3, stride=2)),
        pool=nn.MaxPool2d(3, stride=2),
    )


def fan(inputs: int) -> nn.Module:
    return Branches(
        wide=ConvNorm(inputs, 384, (1, 3), padding=(0, 1)), tall=ConvNorm(inputs, 384, (3, 1), padding=(1, 0))
    )


def inception_c(inputs: int) -> nn.Module:
    """The 8x8 module: filter banks expanded sideways (figure 7)."""
    return Branches(
        one=ConvNorm(inputs, 320, 1),
        three=nn.Sequential(ConvNorm(inputs, 384, 1), fan(384)),
        deep=nn.Sequential(ConvNorm(inputs, 448, 1), ConvNorm(448, 384, 3, padding=1), fan(384)),
        pool=nn.Sequential(average_pool(), ConvNorm(inputs, 192, 1)),
    )


def inception_stem() -> nn.Module:
    """299x299 to 35x35 (table 1, with the filter counts of the authors' released model)."""
    return nn.Sequential(
        ConvNorm(3, 32, 3, stride=2), ConvNorm(32, 32, 3), ConvNorm(32, 64, 3, padding=1), nn.MaxPool2d(3, stride=2),
        ConvNorm(64, 80, 1), ConvNorm(80, 192, 3), nn.MaxPool2d(3, stride=2),
    )  # fmt: skip


class InceptionV3(nn.Module):
    """Inception-V3 (arXiv 1512.00567, section 6, table 1)."""

    def __init__(self, size: int, classes: int, auxiliary: bool) -> None:
        super().__init__()
        self.stem = inception_stem()
        early = [inception_a(192, 32), inception_a(256, 64), inception_a(288, 64), reduction_a(288)]
        self.early = nn.Sequential(*early, *(inception_b(768, inner) for inner in (128, 160, 160, 192)))
        self.auxiliary = Auxiliary(768, (size - 27) // 16, classes) if auxiliary else None
        self.late = nn.Sequential(reduction_b(768), inception_c(1280), inception_c(2048))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(2048, classes)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        shared = self.early(self.stem(x))
        logits: Tensor = self.head(self.dropout(self.late(shared).mean((2, 3))))
        if targets is None or self.auxiliary is None:
            return logits
        return F.cross_entropy(logits, targets) + 0.4 * F.cross_entropy(self.auxiliary(shared), targets)


def inception_v3(training: bool, batch: int, size: int = 299, classes: int = 1000) -> Model:
    return classifier(lambda: InceptionV3(size, classes, auxiliary=training), training, batch, size, classes)


class BottleneckBlock(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut (He et al. 2015, arXiv 1512.03385, figure 5); stride on the 3x3."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.reduce = ConvNorm(inputs, inner, 1)
        self.middle = ConvNorm(inner, inner, 3, stride, padding=1)
        self.widen = nn.Sequential(nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * inner:
            project = nn.Conv2d(inputs, 4 * inner, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(4 * inner))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.widen(self.middle(self.reduce(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet of bottlenecks (arXiv 1512.03385, table 1)."""

    def __init__(self, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1))
        blocks, inputs = [], 64
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(BottleneckBlock(inputs, 64 << stage, stride=2 if stage and not i else 1))
                inputs = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits if targets is None else F.cross_entropy(logits, targets)


def resnet50(
    training: bool, batch: int, size: int = 224, classes: int = 1000, depths: tuple[int, ...] = (3, 4, 6, 3)
) -> Model:
    return classifier(lambda: ResNet(depths, classes), training, batch, size, classes)


class SelfAttention(nn.Module):
    """Attention of all patches to all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(x).chunk(3, dim=-1)
        query, key, value = (p.reshape(*p.shape[:-1], self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class VitLayer(nn.Module):
    """Normalised before each part (Dosovitskiy et al. 2020, arXiv 2010.11929, equations 2 and 3)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention = SelfAttention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6)
        widen, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.feed_forward = nn.Sequential(widen, nn.GELU(), nn.Dropout(dropout), narrow, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Vit(nn.Module):
    """Patches of an image through a transformer."""

    def __init__(self, layers: int, width: int, heads: int, patch: int, size: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.dropout = nn.Dropout(0.1)  # table 3, trained on ImageNet
        self.layers = nn.Sequential(*(VitLayer(width, heads, dropout=0.1) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        joined = torch.cat([self.class_token.expand(x.shape[0], -1, -1), patches], dim=1)
        hidden = self.layers(self.dropout(joined + self.position))
        logits: Tensor = self.head(self.norm(hidden)[:, 0])
        return logits if targets is None else F.cross_entropy(logits, targets)


def vit(training: bool, batch: int, size: int = 224, classes: int = 1000, layers: int = 12) -> Model:
    """ViT-B/16 (arXiv 2010.11929, table 1)."""
    return classifier(lambda: Vit(layers, 768, 12, 16, size, classes), training, batch, size, classes)
