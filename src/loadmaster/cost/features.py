"""What the learned model looks at, one row for each op: rates, sizes, layouts and names.

Sizes come from the signature of a torch call where the graph has one, else from the bytes of what an op reads and
makes. The sides of a matrix product follow from its arithmetic and the sizes of its operands, so that products of any
importer are told apart by shape.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.cluster import Device
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints
from loadmaster.graph.kinds import HEAVY, bare_name, work_of

Floats = NDArray[np.float64]

HALVES = ("float16", "bfloat16")
GROUPS = (
    "product", "convolution", "attention", "attention backward", "update", "elementwise", "reduction", "opaque",
)  # fmt: skip
TILE, PROCESSORS = 128, 132  # of the output that a processor makes at a time, and how many were measured
_ITEM = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "complex64": 8}
_CONVOLUTION, _ATTENTION = re.compile(r"conv", re.IGNORECASE), re.compile(r"attention", re.IGNORECASE)


@lru_cache(maxsize=4096)
def group_of(kind: str) -> str:
    """What an error is shared by: products, convolutions, attention, updates, and the other kinds of work."""
    if kind.startswith("optim."):
        return "update"
    work = work_of(kind)
    if work != HEAVY:
        return work
    if _ATTENTION.search(kind):
        return "attention backward" if "backward" in kind else "attention"
    return "convolution" if _CONVOLUTION.search(kind) else "product"


class OpFacts(NamedTuple):
    """What decides a row: the call, and bytes of its two largest reads and of its largest result."""

    kind: str
    dtype: str
    flops: int
    bytes_moved: int
    first: int
    second: int
    out: int
    num_reads: int
    signature: str


def facts_of(graph: Graph) -> list[OpFacts]:
    """[ops]"""
    nbytes, reads, makes = graph.nbytes.tolist(), graph.reads.tolist(), graph.makes.tolist()
    read, made = graph.read_start.tolist(), graph.make_start.tolist()
    flops, moved, found = graph.flops.tolist(), graph.bytes_moved.tolist(), []
    for op, name in enumerate(graph.op_name):
        sizes = sorted((nbytes[tensor] for tensor in reads[read[op] : read[op + 1]]), reverse=True)
        out = max((nbytes[tensor] for tensor in makes[made[op] : made[op + 1]]), default=0)
        first, second = (*sizes[:2], 0, 0)[:2]
        work = graph.kind[op], graph.dtype[op], flops[op], moved[op]
        found.append(OpFacts(*work, first, second, out, len(sizes), graph.signature.get(name, "")))
    return found


def rows_of(facts: Sequence[OpFacts], names: Sequence[str]) -> Floats:
    """[ops, features] all that does not depend on the device; `names` are the kinds that have a column of their own."""
    count = len(facts)
    flops, _, first, second, out, reads = np.array([fact[2:8] for fact in facts], float).reshape(count, 6).T
    item = np.array([_ITEM.get(fact.dtype, 4) for fact in facts])
    layouts = [_layout(fact.signature) for fact in facts]
    known = np.array([layout is not None for layout in layouts])
    table = np.array([layout or (0.0,) * 10 for layout in layouts]).reshape(count, 10)
    a, b, reads = (
        np.where(known, table[:, 7 + number], other)
        for number, other in enumerate((first / item, second / item, reads))
    )
    c = out / item
    kinds, which = np.unique([fact.kind for fact in facts], return_inverse=True)
    groups = np.array([GROUPS.index(group_of(kind)) for kind in kinds])[which]
    places = {name: number for number, name in enumerate(names)}
    named = np.array([places.get(bare_name(kind), -1) for kind in kinds])[which]
    back = np.array(["backward" in kind for kind in kinds])[which]
    half = [fact.dtype in HALVES for fact in facts]
    plain = np.column_stack([half, back, known, _log(a), _log(b), _log(c), reads])
    hot = np.zeros((count, len(GROUPS) + len(names)))
    hot[np.arange(count), groups] = 1.0
    hot[named >= 0, len(GROUPS) + named[named >= 0]] = 1.0
    return np.column_stack([plain, _sides(groups, flops, a, b, c), table[:, :7], hot])


def ideal_ns(device: Device, facts: Sequence[OpFacts]) -> tuple[Floats, Floats]:
    """[ops] (arithmetic, traffic) at the rates of the data sheet, in ns."""
    rate = {fact.dtype: device.rate(fact.dtype) for fact in facts}
    compute = np.array([fact.flops * 1e9 / rate[fact.dtype] for fact in facts])
    return compute, np.array([fact.bytes_moved * 1e9 / device.bytes_per_s for fact in facts])


def rows_on(compute_ns: Floats, moving_ns: Floats, rows: Floats) -> Floats:
    """With the columns that depend on the device's rates."""
    compute, moving = (np.log(np.maximum(part, 1.0)) for part in (compute_ns, moving_ns))
    return np.column_stack([compute, moving, np.maximum(compute, moving), np.clip(compute - moving, -6, 6), rows])


def _sides(groups: Ints, flops: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    """[ops, 5] of products, convolutions and attention: logs of the side that is summed over, the shorter and the
    longer side of the result, how many products there are, and rounds of tiles over all processors."""
    heavy = (groups < 4) & (np.minimum(np.minimum(a, b), np.minimum(c, flops)) > 0)
    product = groups == GROUPS.index("product")
    flops, a, b, c = (np.where(heavy, part, 1.0) for part in (flops, a, b, c))
    inner = flops / 2 / c  # of a convolution too: what is summed for each element of its result
    many = np.where(product, np.maximum((2 * np.sqrt(a * b * c) / flops) ** 2, 1.0), 1.0)
    wide = np.where(product, np.sqrt(b * c / a / many), np.minimum(a, b) / inner)
    wide = np.clip(wide, 1.0, np.maximum(c, 1.0))
    tall = np.maximum(c / many / wide, 1.0)
    tiles = np.ceil(wide / TILE) * np.ceil(tall / TILE) * many / PROCESSORS
    sides = [_log(inner), _log(np.minimum(wide, tall)), _log(np.maximum(wide, tall)), _log(many), np.log(tiles)]
    return np.where(heavy[:, None], np.column_stack(sides), 0.0)


@lru_cache(maxsize=2**17)
def _layout(signature: str) -> tuple[float, ...] | None:
    """Read across, repeated, channels last, the last axis, whether it is a multiple of eight, the size of a
    convolution's kernel and its groups; then the sizes of the two largest tensors it is given, and how many there are.
    None where the text is no call."""
    if not signature.startswith("["):
        return None
    name, given, named = json.loads(signature)
    tensors = list(_tensors([given, named]))
    sizes = sorted((math.prod(part["shape"]) for part in tensors), reverse=True)
    shape, stride = (tensors[0]["shape"], tensors[0]["stride"]) if tensors else ([], [])
    large = [part for part in tensors if math.prod(part["shape"]) >= 1024 and len(part["shape"]) > 1]
    across = any(part["stride"][-1] != 1 and part["shape"][-1] > 1 for part in large)
    repeated = any(0 in part["stride"] for part in large)
    last = shape[-1] if shape else 1
    kernel, groups = 1, 1
    if "convolution" in name and len(tensors) > 1:
        weight = tensors[2 if "backward" in name and len(tensors) > 2 else 1]
        kernel = math.prod(weight["shape"][2:])
        groups = next((part for part in reversed(given) if isinstance(part, int) and not isinstance(part, bool)), 1)
    logs = [math.log(max(part, 1)) for part in (last, kernel, groups)]
    flags = float(across), float(repeated), float(len(stride) == 4 and stride[1] == 1), logs[0], float(last % 8 == 0)
    first, second = (*sizes[:2], 0, 0)[:2]
    return *flags, *logs[1:], float(first), float(second), float(len(tensors))


def _tensors(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "tensor" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _log(value: Floats) -> Floats:
    return np.log(np.maximum(value, 1.0))
