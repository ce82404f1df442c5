"""What a summary of a REGAL policy is made of: its choices, what its action goes with, its doubts; plain data.

`summary` works it out, `report.policy` shows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class GraphChoice:
    """One of the choices for the whole graph.

    Attributes:
        name: what is chosen.
        words: the choice.
        chance: how sure the policy is of it, from 0 to 1.
    """

    name: str
    words: str
    chance: float


@dataclass(frozen=True)
class Bin:
    """Ops alike in one measure.

    Attributes:
        mean: of the action.
    """

    low: float
    high: float
    ops: int
    mean: float


@dataclass(frozen=True)
class Relation:
    """An action against a measure of the ops.

    Attributes:
        correlation: of ranks (Spearman); none where one of the two is the same for all ops.
        explained: share of the action's variance that lies between the bins.
    """

    measure: str
    action: str
    correlation: float | None
    explained: float | None
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class Doubt:
    """An op whose device the policy does not know.

    Attributes:
        nbytes: made, workspace and resident.
        device: the likeliest.
    """

    op: str
    scope: str
    kind: str
    nbytes: int
    depth: int
    device: str
    chance: float
    doubt: float


@dataclass(frozen=True)
class Agreement:
    """How far a plan follows the policy, alike devices exchanged where that brings the two together.

    Attributes:
        ops: share of the ops on their likeliest device.
        nbytes: share of their bytes.
    """

    ops: float
    nbytes: float


@dataclass(frozen=True, eq=False)
class Measures:
    """What the ops are.

    Attributes:
        nbytes: [ops] made and workspace.
        resident_bytes: [ops] weights and inputs it reads.
        fan_out: [ops] ops that wait for it.
        depth: [ops] ops before it on the longest path to it.
        mirror: [ops] place in the mirrored order, 0 to 1: a backward op beside its forward op.
    """

    nbytes: Ints  # [ops]
    resident_bytes: Ints  # [ops]
    fan_out: Ints  # [ops]
    depth: Ints  # [ops]
    mirror: Reals  # [ops]

    @property
    def weight_bytes(self) -> Ints:
        return ints(self.nbytes + self.resident_bytes)


@dataclass(frozen=True, eq=False)
class Said:
    """What the policy does to the ops.

    Attributes:
        chance: [ops, devices] of being best there.
        mean_level: [ops, devices] of the affinity genes.
        width_level: [ops] of the priority genes.
        lean: [ops] the chances' mean device: 0 the first, 1 the last; of two, the chance of the second.
        pull: [ops] the mean device by the affinities' means.
        variance: [ops] of the affinities, as a share of the most it can be; mean of the devices.
        place: [ops] in the order that priorities are drawn around, 0 to 1.
        learned_place: [ops] in the order that the policy makes itself.
        shift: [ops] the learned place less that in the program.
        doubt: [ops] entropy of the chances: 0 sure, 1 even.
    """

    chance: Reals  # [ops, devices]
    mean_level: Ints  # [ops, devices]
    variance_level: Ints  # [ops, devices]
    width_level: Ints  # [ops]
    bias_level: Ints  # [ops]
    lean: Reals  # [ops]
    pull: Reals  # [ops]
    variance: Reals  # [ops]
    place: Reals  # [ops]
    learned_place: Reals  # [ops]
    shift: Reals  # [ops]
    doubt: Reals  # [ops]


@dataclass(frozen=True, eq=False)
class PolicySummary:
    """One policy on one problem.

    Attributes:
        first_to_last: devices in the order that lean counts in.
        unsure_bytes: share of all bytes that hang on those ops.
        unsure: the heaviest of them first.
        agreement: with the plan, where one was given.
    """

    policy: str
    network: str
    graph: str
    cluster: str
    objective: str
    devices: tuple[str, ...]
    first_to_last: tuple[str, ...]
    op_names: tuple[str, ...]
    choices: tuple[GraphChoice, ...]
    measures: Measures
    said: Said
    relations: tuple[Relation, ...]
    unsure_ops: int
    unsure_bytes: float
    unsure: tuple[Doubt, ...]
    agreement: Agreement | None

    def to_json(self) -> dict[str, Any]:
        columns = {**vars(self.measures), **vars(self.said)}
        per_op = {name: _plain(column) for name, column in columns.items()}
        head = {name: getattr(self, name) for name in ("policy", "network", "graph", "cluster", "objective")}
        return {
            **head,
            "devices": list(self.devices),
            "first_to_last": list(self.first_to_last),
            "choices": [asdict(choice) for choice in self.choices],
            "relations": [asdict(relation) for relation in self.relations],
            "unsure_ops": self.unsure_ops,
            "unsure_bytes": self.unsure_bytes,
            "unsure": [asdict(doubt) for doubt in self.unsure],
            "agreement": None if self.agreement is None else asdict(self.agreement),
            "ops": {"name": list(self.op_names), **per_op},
        }


def _plain(column: NDArray[Any]) -> list[Any]:
    plain: list[Any] = (np.round(column, 6) if column.dtype.kind == "f" else column).tolist()
    return plain
