"""Real models to plan without bringing one.

Nothing here imports torch; `Entry.model` does, when it is called. Batch sizes and lengths are in each note; where a
paper gives none they are ours. The optimizer is the paper's, or Adam where the paper's is another one that keeps two
numbers per weight.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loadmaster.errors import UnknownName

if TYPE_CHECKING:
    from loadmaster.zoo.pieces import Model

__all__ = ["ENTRIES", "FAMILIES", "MEMBERS", "ZooEntry", "find", "members"]


@dataclass(frozen=True)
class ZooEntry:
    """A model at one size.

    Attributes:
        build: "file:function" inside loadmaster.zoo.
        settings: keyword arguments of the builder.
        note: sizes, in words.
        source: paper and arXiv number.
        devices: how many GO (arXiv 2010.12438, table 1) planned it for; 0: not one of its workloads.
    """

    name: str
    build: str
    settings: Mapping[str, Any] = field(hash=False)
    note: str
    source: str
    devices: int = 0
    optimizer: str = "adam"

    def model(self, training: bool) -> "Model":
        """The module and its example inputs; inside a fake mode they take no memory. Imports torch."""
        file, function = self.build.split(":")
        built: Model = getattr(import_module(f"loadmaster.zoo.{file}"), function)(training, **self.settings)
        return built


ZAREMBA = "Zaremba et al. 2014, arXiv 1409.2329"
GNMT = "Wu et al. 2016, arXiv 1609.08144"


def _rnnlm(name: str, layers: int, width: int, batch: int, steps: int, **about: Any) -> ZooEntry:
    settings = {"layers": layers, "width": width, "vocabulary": 10_000, "batch": batch, "steps": steps}
    note = f"{layers} LSTM layers, {width:,} wide, 10,000 words, batch {batch}, {steps} steps"
    return ZooEntry(name, "rnn:rnnlm", settings, note, **about)


def _gnmt(name: str, layers: int, batch: int, steps: int, devices: int = 0) -> ZooEntry:
    settings = {"layers": layers, "width": 1024, "vocabulary": 32_000, "batch": batch, "steps": steps}
    note = f"{layers} + {layers} LSTM layers, 1,024 wide, 32,000 word pieces, batch {batch}, {steps} + {steps} steps"
    return ZooEntry(name, "rnn:gnmt", settings, note, GNMT, devices)


def _transformer_xl(layers: int) -> ZooEntry:
    published = {"width": 1024, "heads": 8, "inner": 3072, "vocabulary": 204, "dropout": 0.15}  # its large enwik8 model
    settings = {"layers": layers, **published, "batch": 16, "segment": 768, "memory": 768}
    note = f"{layers} layers, 1,024 wide, 8 heads, 204 characters, batch 16, segment 768, memory 768"
    source = "Dai et al. 2019, arXiv 1901.02860"
    return ZooEntry(f"transformer-xl-{layers}", "language:transformer_xl", settings, note, source, layers)


def _inception(name: str, batch: int, devices: int) -> ZooEntry:
    note = f"299 x 299 images, batch {batch}, with the side classifier when training"
    return ZooEntry(
        name, "vision:inception_v3", {"batch": batch}, note, "Szegedy et al. 2015, arXiv 1512.00567", devices
    )


def _wavenet(stacks: int, layers: int) -> ZooEntry:
    settings = {"stacks": stacks, "layers": layers, "batch": 8, "steps": 7680}
    note = f"{stacks} stacks, {layers} layers, 512 channels, 256 in gates and skips, batch 8, 7,680 samples"
    source = "van den Oord et al. 2016, arXiv 1609.03499; 2017, arXiv 1711.10433"
    return ZooEntry(f"wavenet-{stacks}x{layers}", "wavenet:wavenet", settings, note, source, stacks)


_GO = (
    *(_rnnlm(f"rnnlm-{n}", n, width=2048, batch=64, steps=40, source=ZAREMBA, devices=n) for n in (2, 4, 8)),
    *(_gnmt(f"gnmt-{n}", n, batch=128, steps=steps, devices=n) for n, steps in ((2, 30), (4, 30), (8, 50))),
    *(_transformer_xl(n) for n in (2, 4, 8)),
    _inception("inception-v3-b32", 32, devices=2),
    _inception("inception-v3-b64", 64, devices=2),
    ZooEntry(
        "amoebanet-4",
        "cells:amoebanet",
        {"cells": 18, "channels": 256, "batch": 32},
        "AmoebaNet-D, 18 normal cells, 256 filters, 224 x 224 images, batch 32",
        "Real et al. 2018, arXiv 1802.01548",
        devices=4,
    ),
    _wavenet(2, 18),
    _wavenet(4, 36),
)

# The workloads of Mirhoseini et al. 2017 (arXiv 1706.04972) and Placeto (arXiv 1906.08879).
_PLACETO = (
    _rnnlm("rnnlm", 2, width=1500, batch=20, steps=35, source=ZAREMBA, optimizer="sgd"),  # Zaremba's large model
    _gnmt("nmt", 2, batch=64, steps=40),
    _inception("inception-v3", 16, devices=0),
    ZooEntry(
        "nasnet",
        "cells:nasnet",
        {"cells": 18, "channels": 168, "stem": 96, "long_skip": True, "batch": 16, "size": 331},
        "NASNet-A (6 @ 4032), 331 x 331 images, batch 16, with the side classifier when training",
        "Zoph et al. 2017, arXiv 1707.07012",
    ),
)

_TODAY = (
    ZooEntry(
        "resnet50",
        "vision:resnet50",
        {"batch": 32},
        "224 x 224 images, batch 32",
        "He et al. 2015, arXiv 1512.03385",
        optimizer="sgd",
    ),
    ZooEntry(
        "bert-base",
        "language:bert",
        {"batch": 8, "steps": 512},
        "12 layers, 768 wide, 12 heads, 30,522 word pieces, batch 8, 512 steps",
        "Devlin et al. 2018, arXiv 1810.04805",
    ),
    ZooEntry(
        "gpt2",
        "language:gpt2",
        {"batch": 8, "steps": 1024},
        "12 layers, 768 wide, 12 heads, 50,257 tokens, batch 8, 1,024 steps",
        "Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    ),
    ZooEntry(
        "t5-base",
        "language:t5",
        # 512 steps with 15 % in spans of 3 masked have targets of 114 (arXiv 1910.10683, section 3.1.4).
        {"batch": 8, "steps": 512, "targets": 114},
        "12 + 12 layers, 768 wide, 12 heads, 32,128 word pieces, batch 8, 512 + 114 steps",
        "Raffel et al. 2019, arXiv 1910.10683",
    ),
    ZooEntry(
        "llama-8b",
        "language:llama",
        {"batch": 1, "steps": 2048},
        "Llama 3 8B: 32 layers, 4,096 wide, 32 heads over 8, 128,256 tokens, bfloat16, batch 1, 2,048 steps",
        "Grattafiori et al. 2024, arXiv 2407.21783",
    ),
    ZooEntry(
        "mixtral-8x7b",
        "language:mixtral",
        {"batch": 1, "steps": 2048},
        "32 layers, 4,096 wide, 8 experts of which 2, 32,000 tokens, bfloat16, batch 1, 2,048 steps",
        "Jiang et al. 2024, arXiv 2401.04088",
    ),
    ZooEntry(
        "vit-base",
        "vision:vit",
        {"batch": 32},
        "ViT-B/16: 12 layers, 768 wide, 12 heads, 224 x 224 images, batch 32",
        "Dosovitskiy et al. 2020, arXiv 2010.11929",
    ),
    ZooEntry(
        "unet-ddpm",
        "diffusion:unet",
        {"batch": 8, "size": 256, "factors": (1, 1, 2, 2, 4, 4)},
        "256 x 256 images, 128 to 512 channels, attention at 16 x 16, batch 8",
        "Ho et al. 2020, arXiv 2006.11239",
    ),
)

ENTRIES: dict[str, ZooEntry] = {entry.name: entry for entry in (*_GO, *_PLACETO, *_TODAY)}


# Families of small models for transfer experiments: the same kind of graph, at many shapes and sizes.
# A member is drawn by its family and number alone, so `nas-cells/7` is the same model everywhere.

MEMBERS = 32  # of a family: three quarters to learn from, a quarter to be judged by
# The five ops of ENAS (Pham et al. 2018, arXiv 1802.03268, section 2.4), as cells.py names them.
CELL_OPS = ("identity", "sep3", "sep5", "avg3", "max3")
CELL_BLOCKS = 5

Settings = dict[str, Any]


def members(family: str) -> list[ZooEntry]:
    """The members of a family, in order; no two are alike."""
    return [member(family, index) for index in range(MEMBERS)]


def member(family: str, index: int) -> ZooEntry:
    if family not in FAMILIES:
        raise UnknownName.among("family of models", family, FAMILIES)
    if not 0 <= index < MEMBERS:
        fix = f"use {family}/0 to {family}/{MEMBERS - 1}"
        raise UnknownName(f"there is no model called '{family}/{index}'", f"the family '{family}'", fix)
    return FAMILIES[family](f"{family}/{index}", random.Random(f"{family}/{index}"))


def random_cell(draw: random.Random) -> tuple[tuple[str, int, str, int], ...]:
    """Each block applies two random ops to any two earlier states (ENAS, section 2.4).

    Differs from the paper: a cell that ignores one of its two inputs is drawn again, so that no weight is unused.
    """

    def one(states: int) -> tuple[str, int]:
        return draw.choice(CELL_OPS), draw.randrange(states)

    while True:
        blocks = tuple((*one(states), *one(states)) for states in range(2, 2 + CELL_BLOCKS))
        if {0, 1} <= {state for _, left, _, right in blocks for state in (left, right)}:
            return blocks


def nas_cells(name: str, draw: random.Random) -> ZooEntry:
    normal, reduction = random_cell(draw), random_cell(draw)
    cells, channels, batch = draw.choice((3, 6)), draw.choice((16, 20, 24, 32, 36)), draw.choice((32, 64, 128))
    settings = {"normal": normal, "reduction": reduction, "cells": cells, "channels": channels, "batch": batch}
    note = f"random cells on 32 x 32 images, {cells} normal and 2 reduction cells, {channels} channels, batch {batch}"
    return ZooEntry(name, "cells:searched", settings, note, "Pham et al. 2018, arXiv 1802.03268", optimizer="sgd")


def recurrent_sizes(draw: random.Random, layers: int, most: int) -> Settings:
    """Sizes for an unrolled model of at most `most` cells in all, and at least half as many."""
    steps = draw.randint(-(-most // (2 * layers)), most // layers)
    width, batch = draw.choice((256, 512, 650, 1024, 1500, 2048)), draw.choice((16, 32, 64, 128))
    vocabulary = draw.choice((8_000, 10_000, 16_000, 32_000))
    return {"layers": layers, "width": width, "vocabulary": vocabulary, "batch": batch, "steps": steps}


def recurrent_note(settings: Settings) -> str:
    sizes = "{layers} LSTM layers, {width:,} wide, {vocabulary:,} words, batch {batch}, {steps} steps"
    return sizes.format(**settings)


def rnnlm_family(name: str, draw: random.Random) -> ZooEntry:
    settings = recurrent_sizes(draw, layers=draw.randint(1, 6), most=48)
    return ZooEntry(name, "rnn:rnnlm", settings, recurrent_note(settings), "Zaremba et al. 2014, arXiv 1409.2329")


def nmt_family(name: str, draw: random.Random) -> ZooEntry:
    settings = recurrent_sizes(draw, layers=draw.randint(1, 4), most=16)
    return ZooEntry(name, "rnn:gnmt", settings, recurrent_note(settings), "Wu et al. 2016, arXiv 1609.08144")


FAMILIES: dict[str, Callable[[str, random.Random], ZooEntry]] = {
    "nas-cells": nas_cells,
    "rnnlm-family": rnnlm_family,
    "nmt-family": nmt_family,
}


# By name

_MODES = {"train": True, "infer": False}


def find(name: str) -> tuple[ZooEntry, bool]:
    """The entry and whether to train it: `gpt2`, `gpt2/infer`, `nas-cells/7`, `nas-cells/7/infer`."""
    stem, _, mode = name.rpartition("/")
    if mode not in _MODES:
        stem, mode = name, "train"
    family, _, index = stem.partition("/")
    if family in FAMILIES and index.isdecimal():
        return member(family, int(index)), _MODES[mode]
    if stem not in ENTRIES:
        raise UnknownName.among("model in the zoo", stem, [*ENTRIES, *(f"{family}/0" for family in FAMILIES)])
    return ENTRIES[stem], _MODES[mode]
