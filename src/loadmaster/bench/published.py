"""Figures that others published or that were measured of their tools, to be shown beside ours and never as ours.

The graphs and the code of REGAL and GO were never released, so their figures are on other graphs than ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from loadmaster.bench.table import Column, Table

# GO (arXiv 2010.12438, table 1): step seconds of GO, human expert, METIS and HDP; None: out of memory.
GO_SECONDS: Mapping[str, tuple[float, float, float | None, float]] = {
    "rnnlm-2": (0.173, 0.192, 0.355, 0.191),
    "rnnlm-4": (0.210, 0.239, 0.503, 0.251),
    "rnnlm-8": (0.320, 0.332, None, 0.764),
    "gnmt-2": (0.301, 0.384, 0.344, 0.327),
    "gnmt-4": (0.350, 0.469, 0.466, 0.432),
    "gnmt-8": (0.440, 0.562, None, 0.693),
    "transformer-xl-2": (0.223, 0.268, 0.37, 0.262),
    "transformer-xl-4": (0.230, 0.27, None, 0.259),
    "transformer-xl-8": (0.350, 0.46, None, 0.425),
    "inception-v3-b32": (0.229, 0.312, None, 0.301),
    "inception-v3-b64": (0.423, 0.731, None, 0.498),
    "amoebanet-4": (0.394, 0.44, 0.426, 0.418),
    "wavenet-2x18": (0.317, 0.376, None, 0.354),
    "wavenet-4x36": (0.659, 0.988, None, 0.721),
}

# GO, fusion: speed-up over no fusion, in per cent: TensorFlow's default, simulated annealing, GO.
GO_FUSION: Mapping[str, tuple[float, float, float]] = {
    "gnmt-2": (2.82, 3.0, 3.19),
    "gnmt-4": (-0.89, 5.34, 12.03),
    "gnmt-8": (10.47, 10.47, 12.65),
    "rnnlm-4": (1.04, 1.06, 1.23),
    "rnnlm-8": (-2.39, -2.38, -2.27),
    "transformer-xl-2": (24.27, 25.1, 28.51),
    "transformer-xl-4": (17.05, 19.32, 19.99),
    "transformer-xl-8": (21.66, 26.25, 31.48),
}

# REGAL (arXiv 1905.02494): improvement over BRKGA 5K and gap from best known on its TensorFlow test set, seconds.
REGAL_TABLE: Mapping[str, tuple[float, float, str]] = {
    "CP-SAT": (-1.77, 13.89, "about 2 h"),
    "GP + DFS": (-6.51, 16.63, "144"),
    "Local search": (0.63, 8.65, "122"),
    "BRKGA 5K": (0.0, 9.65, "0.89"),
    "Tuned BRKGA": (0.8, 8.54, "1.04"),
    "GAS": (0.16, 9.33, "1.04"),
    "REGAL": (3.56, 4.44, "1.04"),
}

SPEED_UP = "other ÷ method - 1"


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of ratios; not a number where there are none."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios)) if ratios else float("nan")


def go_published() -> Table:
    """GO's own seconds, with the speed-ups that follow from them."""
    rows: list[tuple[object, ...]] = []
    for name, (go, expert, metis, hdp) in GO_SECONDS.items():
        oom = "OOM" if metis is None else metis
        over_metis = None if metis is None else metis / go - 1
        rows.append((name, go, expert, oom, hdp, expert / go - 1, over_metis, hdp / go - 1))
    seconds = GO_SECONDS.values()
    both = [(metis, go) for go, _, metis, _ in seconds if metis is not None]
    means = (
        geometric_mean([expert / go for go, expert, _, _ in seconds]) - 1,
        geometric_mean([metis / go for metis, go in both]) - 1,
        geometric_mean([hdp / go for go, _, _, hdp in seconds]) - 1,
    )
    rows.append(("geometric mean", None, None, None, None, *means))
    timed = (Column(f"{who}, s", "digits") for who in ("GO", "expert", "METIS", "HDP"))
    over = (Column(f"GO over {who}", "percent") for who in ("expert", "METIS", "HDP"))
    note = f"recomputed from the published seconds as {SPEED_UP}; the paper's printed percentages mix two formulas"
    return Table("GO as published (its own graphs and machines)", (Column("workload"), *timed, *over), rows, (note,))


def go_fusion_published() -> Table:
    """The table of GO's paper on fusion, as shares."""
    rows = [(name, *(share / 100 for share in shares)) for name, shares in GO_FUSION.items()]
    means = [geometric_mean([1 + shares[at] / 100 for shares in GO_FUSION.values()]) - 1 for at in range(3)]
    columns = (Column(who, "percent") for who in ("TensorFlow's default", "simulated annealing", "GO"))
    title = "Fusion as GO published it: speed-up over no fusion"
    return Table(title, (Column("workload"), *columns), [*rows, ("geometric mean", *means)])


def regal_published() -> Table:
    """The table of REGAL's paper: gain, gap to the best found and seconds, by method."""
    rows = [(name, better / 100, gap / 100, took) for name, (better, gap, took) in REGAL_TABLE.items()]
    columns = (
        Column("method"),
        Column("over BRKGA 5K", "percent"),
        Column("gap from best known", "percent"),
        Column("s", "number"),
    )
    return Table("REGAL as published, TensorFlow test set (its own graphs)", columns, rows)
