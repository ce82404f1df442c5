"""What a graph of actions remembers of the step that it was made of, so that its plans can be run and exported.

It lies in `Graph.captured` and in the files of plans: from the stage of every op and the number of microbatches the
runtime makes the same stages of a captured step again (`runtime.microbatches`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.graph import PIPELINE
from loadmaster.graph.columns import Ints, ints
from loadmaster.pipelines.stages import WEIGHT, phases_of, weight_ops
from loadmaster.problem import Problem


@dataclass(frozen=True)
class Pipelined:
    """How the step of one microbatch became a pipeline.

    Attributes:
        microbatches: of a batch.
        graph: digest of the graph of one microbatch.
        stage: [ops of its problem] the stage of each.
        weights_apart: the gradients of weights are actions of their own.
        replicated: some stage is there several times over.
    """

    microbatches: int
    graph: str
    stage: tuple[int, ...]  # [ops of its problem]
    weights_apart: bool
    replicated: bool

    def to_json(self) -> dict[str, Any]:
        """As it lies in `captured` and in the files of plans; `pipelined_of` reads it back."""
        return {**vars(self), "stage": list(self.stage)}

    def actions_of(self, problem: Problem) -> tuple[Ints, Ints]:
        """([ops] stage, [ops] phase) of the step of one microbatch."""
        if len(self.stage) != problem.num_ops:
            what = f"its stages are of {len(self.stage)} ops, the step has {problem.num_ops}"
            raise InvalidPlan(what, f"plan: captured: {PIPELINE}", "is the file as it was written?")
        stage, phase = ints(self.stage), phases_of(problem)
        apart = weight_ops(problem, stage, phase) if self.weights_apart else np.zeros(problem.num_ops, bool)
        return stage, ints(np.where(apart, WEIGHT, phase))


_KINDS = {"microbatches": int, "graph": str, "stage": list, "weights_apart": bool, "replicated": bool}


def pipelined_of(captured: Mapping[str, Any]) -> Pipelined | None:
    """What a graph, or the file of a plan, remembers; None: it is no pipeline."""
    data = captured.get(PIPELINE)
    if data is None:
        return None
    known = isinstance(data, dict) and data.keys() == _KINDS.keys()
    if not known or not all(type(data[key]) is kind for key, kind in _KINDS.items()) or not _stages(data["stage"]):
        what = "what it says of its pipeline is not whole"
        raise InvalidPlan(what, f"plan: captured: {PIPELINE}", "is the file as it was written?")
    return Pipelined(**{**data, "stage": tuple(data["stage"])})


def _stages(numbers: list[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 2**31 for number in numbers)
