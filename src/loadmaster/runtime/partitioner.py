"""The cut of a joint graph into forward and backward under a memory limit, given to Inductor.

Where torch's own cut keeps the limit it is returned as it is, so the compiled step is that of torch.compile. Otherwise
`saving` says what to save; each op that the backward pass must run again is tagged MUST_RECOMPUTE, what is saved
MUST_SAVE, and torch cuts along the tags. Random ops are never tagged.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._functorch import config as functorch
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils.checkpoint import CheckpointPolicy

from loadmaster.runtime.joint import Joint, is_tangent, numel
from loadmaster.runtime.promise import Planned, Promise
from loadmaster.runtime.saving import SavedChoice, cheapest, least

Cut = tuple[fx.GraphModule, fx.GraphModule]


class LimitedPartitioner(CustomPartitionerFn):
    """What Inductor asks for each joint graph of a promise."""

    def __init__(self, promise: Promise) -> None:
        self.promise = promise

    def uuid(self) -> Any:
        """Of the kernels: their cache knows forward and backward graphs, so the cut is in its key."""
        return "loadmaster"

    def __getstate__(self) -> dict[str, Any]:
        """For Inductor's caches, which pickle their settings: as `uuid`."""
        return {}

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **settings: Any) -> Cut:
        count: int = settings["num_fwd_outputs"]
        gm.graph.eliminate_dead_code()
        if functorch.cse:
            gm.graph = fx_graph_cse(gm.graph)
        plain = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        cut: Cut = min_cut_rematerialization_partition(plain, joint_inputs, **settings)
        joint = Joint(gm.graph, count, self.promise.larger(_batch(gm.graph, settings)))
        first = _saving(joint, cut[0], count)
        room = self.promise.room()
        if first.outcome.peak_bytes <= room:
            self.promise.plan(Planned(first.outcome.peak_bytes, least(joint, first.saved).outcome.peak_bytes, 0))
            return cut
        found = cheapest(joint, first.saved, room)
        if found is None:
            self.promise.refuse(least(joint, first.saved).outcome.peak_bytes)
        tag(joint, found)
        cut = min_cut_rematerialization_partition(gm, joint_inputs, **settings)
        made = _saving(joint, cut[0], count)
        lowest = least(joint, first.saved).outcome.peak_bytes
        self.promise.plan(Planned(made.outcome.peak_bytes, lowest, len(made.outcome.again - first.outcome.again)))
        return cut


def _saving(joint: Joint, forward: fx.GraphModule, count: int) -> SavedChoice:
    """What a forward graph hands to its backward graph."""
    names = {node.name: index for node, index in joint.number.items()}
    (outputs,) = forward.graph.output_node().args
    assert isinstance(outputs, (list, tuple))
    known = [names[node.name] for node in outputs[count:] if isinstance(node, fx.Node) and node.name in names]
    saved = frozenset(index for index in known if not joint.given[index])
    return SavedChoice(saved, joint.evaluate(saved))


def tag(joint: Joint, saving: SavedChoice) -> None:
    for index in saving.outcome.again:
        if not joint.fixed[index]:
            joint.nodes[index].meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            joint.nodes[index].meta["ac_graph_id"] = 0
    for index in saving.saved:
        joint.nodes[index].meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _batch(graph: fx.Graph, settings: dict[str, Any]) -> tuple[int, bool]:
    """Elements of the inputs that are no weights, and whether their number is open."""
    weights = set(settings.get("static_lifetime_input_indices") or ())
    inputs = [node for node in graph.find_nodes(op="placeholder") if not is_tangent(node)]
    values = [node.meta.get("val") for index, node in enumerate(inputs) if index not in weights]
    tensors = [value for value in values if hasattr(value, "untyped_storage")]
    open_sizes = any(not isinstance(size, int) for value in tensors for size in value.shape)
    return sum(numel(value) for value in tensors), open_sizes
