"""Families of small models for transfer experiments: the same kind of graph, at many shapes and sizes.

A member is drawn by its family and number alone, so `nas-cells/7` is the same model everywhere. Nothing here imports
torch.
"""

import random
from collections.abc import Callable
from typing import Any

from loadmaster.errors import UnknownName
from loadmaster.zoo.entry import ZooEntry

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
