"""Placements that people use, as data: which modules of a known model go where, and why.

A lane is a run of modules in the order in which the model calls them, cut into contiguous pieces, one per device.
`*` stands for the number of a layer, so "encoder.layers.*" is one module per layer. A module is named with all that is
inside it, forward and backward, and with the updates of its weights. What is named nowhere goes where it sends least.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Cut = Literal["layers", "time"]  # equal numbers of modules per device, or equal time


@dataclass(frozen=True)
class Lane:
    """Modules that a person would split over the devices in a row.

    Attributes:
        on_first: modules on the first device.
    """

    modules: tuple[str, ...]
    cut: Cut = "time"
    on_first: tuple[str, ...] = ()
    on_last: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What an expert does with the models whose graph has such a name, and why.

    Attributes:
        models: regular expression of the graph's name without its mode.
    """

    models: str
    lanes: tuple[Lane, ...]
    why: str


ADVICE = (
    Recipe(
        r"rnnlm(-.*)?",
        (Lane(("layers.*",), "layers", ("embedding",), ("head",)),),
        "One LSTM layer per device: layer i works on word t while layer i - 1 works on word t + 1, and one hidden "
        "state a word crosses. The embedding sits with the first layer and the softmax with the last (Mirhoseini et "
        "al. 2017, arXiv 1706.04972, section 4.2), or on a device of its own where one is left.",
    ),
    Recipe(
        r"(gnmt|nmt)(-.*)?",
        (
            Lane(("encoder.layers.*",), "layers", ("source_embedding",)),
            Lane(("decoder.layers.*",), "layers", ("target_embedding", "decoder.attention"), ("head",)),
        ),
        "Layer i of the encoder and layer i of the decoder on device i (Wu et al. 2016, arXiv 1609.08144, section 3.3 "
        "and figure 1). The bottom decoder layer asks for the context of every word, so the attention sits with it. "
        "The paper cuts the softmax into pieces of the vocabulary; here it is one product and sits with the top layer, "
        "or on a device of its own where one is left.",
    ),
    Recipe(
        r"transformer-xl-.*",
        (Lane(("layers.*",), "layers", ("embedding", "dropout"), ("head",)),),
        "Equal layers in equal contiguous blocks: one hidden state crosses each cut, once forward and once backward. "
        "The embedding sits with the first block and the small softmax with the last.",
    ),
    Recipe(
        r"inception-v3(-.*)?",
        (Lane(("stem.*", "early.*", "late.*", "head")),),
        "Whole modules in contiguous shares of equal time: a cut between modules sends one tensor, a cut through one "
        "a tensor for each branch. One device is faster while the batch fits on it; two hold twice the batch.",
    ),
    Recipe(
        r"(amoebanet|nasnet|nas-cells)([-/].*)?",
        (Lane(("stem", "cells.*", "head")),),
        "Whole cells in contiguous shares of equal time, as GPipe cuts AmoebaNet (Huang et al. 2018, arXiv "
        "1811.06965): a cell reads the two before it, so a cut sends two tensors, while the ops inside a cell exchange "
        "a dozen.",
    ),
    Recipe(
        r"wavenet-.*",
        (Lane(("layers.*",), "layers", ("enter",), ("head",)),),
        "One stack of dilated layers per device: the residual and the running sum of the skips cross each cut, and the "
        "head sits where the sum ends.",
    ),
    Recipe(
        r"gpt2",
        (
            Lane(
                ("model.transformer.h.*", "model.transformer.ln_f"), "time", ("model.transformer.wte", "model.lm_head")
            ),
        ),
        "Contiguous blocks of equal time. The softmax shares its weight with the embedding, so both are on the first "
        "device and the last hidden state comes back to it: 25 MB instead of a weight and a gradient of 154 MB.",
    ),
)


def advice_for(name: str) -> Recipe | None:
    """What an expert says of the graph of that name ("gnmt-4/train"), if it is a known model."""
    model = re.sub(r"/(train|infer)$", "", name)
    return next((advice for advice in ADVICE if re.fullmatch(advice.models, model)), None)


@lru_cache(maxsize=1 << 14)
def unit_of(scope: str, modules: tuple[str, ...]) -> tuple[int, int] | None:
    """Which of the modules a scope lies in, as (place in `modules`, number of the layer); None: in none."""
    for place, module in enumerate(modules):
        pattern = re.escape(module).replace(r"\*", r"(\d+)")
        if match := re.match(rf"{pattern}(?:\.|$)", scope):
            return place, int(match[1]) if match.groups() else 0
    return None
