"""How step times spread against the best known: python benchmarks/cdf.py RECORDS.jsonl PICTURE.png.

Reads the records that `loadmaster lab bench families --out FOLDER` leaves; one panel for each family, one line for each
method: the share of problems on which its step is at most so many times the best that any method reached there.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

LABELS = {
    "one-device": "one device",
    "random:samples=33": "random placements of ops",
    "placeto:tune=no": "Placeto, untrained",
    "placeto": "Placeto, learning on the graph",
    "placement": "placement, 1,000 simulations",
}


def ratios(path: Path) -> dict[str, dict[str, list[float]]]:
    """family -> method -> step ÷ best step of that problem."""
    problems: dict[str, dict[str, int]] = defaultdict(dict)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        problems[record["row"]][record["spec"]] = record["value"]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, values in problems.items():
        for spec, value in values.items():
            found[row.split("/")[0]][spec].append(value / min(values.values()))
    return found


def draw(found: dict[str, dict[str, list[float]]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(4.2 * len(found), 3.6), sharey=True, layout="constrained")
    for panel, (family, methods) in zip(np.atleast_1d(panels), sorted(found.items()), strict=True):
        for spec, label in LABELS.items():
            if spec in methods:
                values = np.sort(methods[spec])
                share = np.arange(1, len(values) + 1) / len(values)
                panel.step([1.0, *values, 3.0], [0.0, *share, 1.0], where="post", label=label, linewidth=1.6)
        panel.set(title=family, xlabel="step time ÷ best", xlim=(1.0, 1.3), ylim=(0, 1.02))
        panel.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(panels)[0].set_ylabel("share of problems")
    handles, labels = np.atleast_1d(panels)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    draw(ratios(Path(sys.argv[1])), Path(sys.argv[2]))
