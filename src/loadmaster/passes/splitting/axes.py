"""Along which dimensions an op may be split, by its kind and the shapes of what it reads and makes.

An axis is a loop of the op: it runs over one dimension of some of what it reads and of some of what it makes. Part p
of the op reads its share of the former, all of the rest, and makes its share of the latter. A result without that
dimension is a partial sum. Only kinds that are listed here have axes, and only where the shapes leave no doubt which
dimension is which: what cannot be told is not split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import gcd, prod
from typing import Literal

from loadmaster.graph import UNGIVEN, Graph

Shape = tuple[int, ...]
Join = Literal["sum", "loss"]  # how parts without the dimension become the whole
SUM: Join = "sum"
LOSS: Join = "loss"  # parts of a mean or sum over samples, with the weight of each


@dataclass(frozen=True)
class Axis:
    """One way to split an op.

    Attributes:
        size: a number of parts must divide it.
        reads: [reads] dimension that is split; None: every part reads all of it.
        makes: [makes] dimension that is split, or how whole results come from those of the parts.
    """

    size: int
    reads: tuple[int | None, ...]  # [reads]
    makes: tuple[int | Join, ...]  # [makes]


_ELEMENTWISE = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "pow", "erf"),
        *("sin", "cos", "maximum", "minimum", "clamp", "lerp", "addcmul", "addcdiv", "where", "masked_fill"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or"),
        *("bitwise_not", "bitwise_and", "bitwise_or", "clone", "_to_copy", "relu", "threshold_backward"),
        *("gelu", "gelu_backward", "tanh", "tanh_backward", "sigmoid", "sigmoid_backward", "silu", "silu_backward"),
        *("leaky_relu", "leaky_relu_backward", "elu", "elu_backward", "hardtanh", "hardtanh_backward"),
        *("hardswish", "hardswish_backward", "native_dropout_backward"),
    )
)
RESHAPES = frozenset(["view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"])
_SAME = frozenset(["detach", "alias"])


def bare_kind(kind: str) -> str:
    """ "mm" of "aten.mm.default"."""
    return re.sub(r"^aten\.", "", kind).split(".")[0] if kind.startswith("aten.") else ""


def axes_of(graph: Graph, op: int) -> tuple[Axis, ...]:
    """All ways to split the op; none where it cannot be told."""
    reads = [graph.shape[t] for t in graph.reads_of(op)]
    makes = [graph.shape[t] for t in graph.makes_of(op)]
    kind = bare_kind(graph.kind[op])
    rule = _rule(kind)
    written_over = graph.is_alias[graph.makes_of(op)].any() and not graph.is_view[op]
    timed = bool((graph.time_ns[op] != UNGIVEN).any())
    if written_over or timed or graph.is_colocated[op] or None in reads or None in makes:
        return ()
    over = softmax_dim(graph, op) if kind in _SOFTMAX else None
    if over is not None:
        rule = partial(_over_one, over)
    elif rule is None or (kind in _OVER_CLASSES and not _over_classes(graph, op)):
        return ()
    return tuple(axis for axis in rule([s or () for s in reads], [s or () for s in makes]) if axis.size > 1)


Rule = Callable[[Sequence[Shape], Sequence[Shape]], list[Axis]]


def _rule(kind: str) -> Rule | None:
    if kind in _ELEMENTWISE:
        return _elementwise
    if kind in RESHAPES:
        return _reshape
    return _elementwise if kind in _SAME else _RULES.get(kind)


def _elementwise(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Every dimension of the result; a read that is broadcast along it is needed whole."""
    if len(makes) != 1 or any(len(shape) > len(makes[0]) for shape in reads):
        return []
    rank = len(makes[0])
    axes = []
    for dim, size in enumerate(makes[0]):
        places = [dim - rank + len(shape) for shape in reads]
        own = [at if at >= 0 and shape[at] != 1 else None for at, shape in zip(places, reads, strict=True)]
        if all(at is None or shape[at] == size for at, shape in zip(own, reads, strict=True)):
            axes.append(Axis(size, tuple(own), (dim,)))
    return axes


def _reshape(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """The first dimension of each run that becomes another: parts of one are parts of the other."""
    if len(reads) != 1 or len(makes) != 1 or prod(reads[0]) != prod(makes[0]) or not prod(reads[0]):
        return []
    axes, left, right = [], reads[0], makes[0]
    for pair in runs(left, right):
        whole = [
            next((d for d in range(*run) if shape[d] > 1), run[0])
            for run, shape in zip(pair, (left, right), strict=True)
        ]
        axes.append(Axis(gcd(left[whole[0]], right[whole[1]]), (whole[0],), (whole[1],)))
    return axes


def runs(left: Shape, right: Shape) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Dimensions, from one to another, of two shapes of the same numbers that have as many numbers."""
    i, j = 0, 0
    while i < len(left) and j < len(right):
        first, second, a, b = i, j, left[i], right[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * left[i], i + 1
            else:
                b, j = b * right[j], j + 1
        yield (first, i), (second, j)


def _transpose(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Two dimensions change places: which two must show in the shapes."""
    if len(reads) != 1 or len(makes) != 1 or len(reads[0]) != len(makes[0]):
        return []
    moved = [d for d, (a, b) in enumerate(zip(reads[0], makes[0], strict=True)) if a != b]
    if len(reads[0]) == 2 and not moved:
        moved = [0, 1]  # a matrix has but two
    if len(moved) != 2:
        return []
    swap = {moved[0]: moved[1], moved[1]: moved[0]}
    return [Axis(size, (d,), (swap.get(d, d),)) for d, size in enumerate(reads[0])]


def _matrix(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    if [len(s) for s in (*reads, *makes)] != [2, 2, 2]:
        return []
    (rows, inner), (_, columns) = reads
    return [Axis(rows, (0, None), (0,)), Axis(columns, (None, 1), (1,)), Axis(inner, (1, 0), (SUM,))]


def _matrix_and_bias(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Not along the inner dimension: the bias would be added by every part."""
    if [len(s) for s in (*reads[1:], *makes)] != [2, 2, 2]:
        return []
    bias, (rows, columns) = reads[0], makes[0]
    if len(bias) > 2:
        return []
    own_rows = 0 if len(bias) == 2 and bias[0] != 1 else None
    own_columns = len(bias) - 1 if bias and bias[-1] != 1 else None
    return [Axis(rows, (own_rows, 0, None), (0,)), Axis(columns, (own_columns, None, 1), (1,))]


def _matrices(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    if [len(s) for s in (*reads, *makes)] != [3, 3, 3]:
        return []
    (batch, rows, inner), (_, _, columns) = reads
    return [
        Axis(batch, (0, 0), (0,)),
        Axis(rows, (1, None), (1,)),
        Axis(columns, (None, 2), (2,)),
        Axis(inner, (2, 1), (SUM,)),
    ]


def _convolution(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Samples; output channels where weights are plainly [out, in, …]: a transposed one has them the other way."""
    if len(reads) not in (2, 3) or len(makes) != 1 or len(reads[0]) != len(makes[0]) or len(reads[0]) < 3:
        return []
    (given, weight), made = reads[:2], makes[0]
    bias = (None,) * (len(reads) - 2)
    axes = [Axis(made[0], (0, None, *bias), (0,))]
    if weight[:2] == (made[1], given[1]) and made[1] != given[1]:
        axes.append(Axis(made[1], (None, 0, *(0 for _ in bias)), (1,)))
    return axes


def _convolution_backward(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Samples: gradients of weights and biases are sums over them. It reads the gradient of the result and, for that of
    its input, the weight, or, for that of the weight, the input; whole, both."""
    if not reads or not makes or any(len(s) < 3 for s in (*reads, makes[0])):
        return []
    samples, channels = reads[0][:2]
    of_input: Axis | None = None
    of_weight: Axis | None = None
    biases = all(shape == (channels,) for shape in makes[1:])
    if len(reads) == 2 and makes[0][0] == samples and reads[1][:2] == (channels, makes[0][1]) and len(makes) == 1:
        of_input = Axis(samples, (0, None), (0,))
    if len(reads) == 2 and reads[1][0] == samples and makes[0][:2] == (channels, reads[1][1]) and biases:
        of_weight = Axis(samples, (0, 0), (SUM,) * len(makes))
    if len(reads) == 3 and reads[1] != reads[2] and makes[0] == reads[1] and set(makes[1:]) <= {reads[2], (channels,)}:
        of_input = Axis(samples, (0, 0, None), (0, *(SUM for _ in makes[1:])))
    found = [axis for axis in (of_input, of_weight) if axis is not None]
    return found if len(found) == 1 else []


def _embedding(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    if len(reads) != 2 or len(makes) != 1 or len(reads[0]) != 2 or not reads[1]:
        return []
    return [Axis(reads[1][0], (None, 0), (0,)), Axis(reads[0][1], (1, None), (len(makes[0]) - 1,))]


def _embedding_backward(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    if len(reads) != 2 or len(makes) != 1 or len(makes[0]) != 2 or not reads[1] or reads[0][:-1] != reads[1]:
        return []
    return [Axis(makes[0][1], (len(reads[0]) - 1, None), (1,)), Axis(reads[1][0], (0, 0), (SUM,))]


def _samples(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Rows of a softmax over classes."""
    if any(len(shape) != 2 or shape != makes[0] for shape in (*reads, *makes)):
        return []
    return [Axis(makes[0][0], (0,) * len(reads), (0,))]


def _over_one(over: int, reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Every dimension but the one that a softmax is over."""
    if len({*reads, *makes}) != 1:
        return []
    every = enumerate(makes[0])
    return [Axis(size, (d,) * len(reads), (d,) * len(makes)) for d, size in every if d != over % len(makes[0])]


def _loss(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    if [len(s) for s in reads] != [2, 1] or makes != [(), ()]:
        return []
    return [Axis(reads[1][0], (0, 0), (LOSS, LOSS))]


def _loss_backward(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    if [len(s) for s in reads] != [0, 2, 1, 0] or [len(s) for s in makes] != [2]:
        return []
    return [Axis(makes[0][0], (None, 0, 0, None), (0,))]


def _summed(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Kept dimensions, and summed ones as partial sums; which are summed must show in the shapes."""
    if len(reads) != 1 or len(makes) != 1 or len(reads[0]) < len(makes[0]):
        return []
    given, made = reads[0], makes[0]
    if len(given) == len(made):
        gone = tuple(d for d, (a, b) in enumerate(zip(given, made, strict=True)) if a != b)
        kept = {d: d for d in range(len(given)) if d not in gone}
    else:
        ways = list(combinations(range(len(given)), len(given) - len(made)))
        found = [way for way in ways if tuple(n for d, n in enumerate(given) if d not in way) == made]
        if len(found) != 1:
            return []
        gone = found[0]
        kept = {d: i for i, d in enumerate(d for d in range(len(given)) if d not in gone)}
    return [Axis(given[d], (d,), (kept.get(d, SUM),)) for d in range(len(given))]


def _averaged(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Kept dimensions only: a mean of parts is no part of a mean."""
    return [axis for axis in _summed(reads, makes) if SUM not in axis.makes]


def _layer_norm(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """Samples: what is normalised over is the end of the shape, as the means show."""
    if not reads or [len(s) for s in makes] != [len(reads[0])] * 3 or makes[1][:1] != reads[0][:1]:
        return []
    return [Axis(reads[0][0], (0, *(None for _ in reads[1:])), (0, 0, 0))]


def _layer_norm_backward(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """(gradient, input, means, spreads, weight, bias): gradients of weight and bias are sums over samples."""
    if len(reads) < 4 or len(reads[0]) < 2 or reads[0] != reads[1] or reads[2] != reads[3] or makes[:1] != [reads[0]]:
        return []
    if reads[2][:1] != reads[0][:1] or any(shape[:1] == reads[0][:1] for shape in (*reads[4:], *makes[1:])):
        return []
    return [Axis(reads[0][0], (0, 0, 0, 0, *(None for _ in reads[4:])), (0, *(SUM for _ in makes[1:])))]


def _concatenated(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """The dimensions along which nothing is put together; which one is must show in the shapes."""
    if len(makes) != 1 or not reads or any(len(shape) != len(makes[0]) for shape in reads):
        return []
    rank = range(len(makes[0]))
    same = [d for d in rank if all(shape[d] == makes[0][d] for shape in reads)]
    if len(same) != len(makes[0]) - 1:
        return []
    return [Axis(makes[0][d], (d,) * len(reads), (d,)) for d in same]


def _cut(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """The same for what cuts one tensor into several."""
    if len(reads) != 1:
        return []
    return [replace(axis, reads=axis.makes[:1], makes=axis.reads) for axis in _concatenated(makes, reads)]  # type: ignore[arg-type]


def _attention(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """(query, key, value, maybe a mask) to (result, logarithms of sums): samples, and heads where all have as many."""
    if len(reads) not in (3, 4) or [len(s) for s in (*reads[:3], *makes)] != [4, 4, 4, 4, 3]:
        return []
    return _heads_and_samples(reads, makes, masks=reads[3:])


def _attention_backward(reads: Sequence[Shape], makes: Sequence[Shape]) -> list[Axis]:
    """(gradient, query, key, value, result, logarithms, maybe a mask) to three gradients."""
    if len(reads) not in (6, 7) or [len(s) for s in (*reads[:6], *makes)] != [4, 4, 4, 4, 4, 3, 4, 4, 4]:
        return []
    return _heads_and_samples(reads, makes, masks=reads[6:])


def _heads_and_samples(reads: Sequence[Shape], makes: Sequence[Shape], masks: Sequence[Shape]) -> list[Axis]:
    axes, plain = [], reads[: len(reads) - len(masks)]
    for dim in (0, 1):
        sizes = {shape[dim] for shape in (*plain, *makes)}
        if len(sizes) == 1 and all(len(mask) == 4 and mask[dim] in (1, *sizes) for mask in masks):
            own = [None if mask[dim] == 1 else dim for mask in masks]
            axes.append(Axis(sizes.pop(), (*(dim for _ in plain), *own), (dim,) * len(makes)))
    return axes


_RULES: Mapping[str, Rule] = {
    "mm": _matrix,
    "addmm": _matrix_and_bias,
    "bmm": _matrices,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_log_softmax": _samples,
    "_log_softmax_backward_data": _samples,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss_backward,
    "sum": _summed,
    "mean": _averaged,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    # The ones for CPUs have no dropout; others may draw random numbers, which parts would draw otherwise.
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "cat": _concatenated,
    "split": _cut,
    "split_with_sizes": _cut,
    "t": _transpose,
    "transpose": _transpose,
    "expand": _elementwise,
}
_SOFTMAX = {"_softmax": 1, "_log_softmax": 1, "_softmax_backward_data": 2, "_log_softmax_backward_data": 2}
_OVER_CLASSES = ("_log_softmax", "_log_softmax_backward_data")


def softmax_dim(graph: Graph, op: int) -> int | None:
    """What a softmax is over, where its call is known."""
    text = graph.signature.get(graph.op_name[op])
    place = _SOFTMAX.get(bare_kind(graph.kind[op]))
    if text is None or place is None:
        return None
    args = json.loads(text)[1]
    return args[place] if len(args) > place and type(args[place]) is int else None


def _over_classes(graph: Graph, op: int) -> bool:
    """Whether a softmax is over the last dimension of two: a loss by class reads what it makes."""
    start = op
    if bare_kind(graph.kind[op]) == "_log_softmax_backward_data":
        start = int(graph.producer[graph.owner[graph.reads_of(op)[-1]]])
        if start < 0 or bare_kind(graph.kind[start]) != "_log_softmax":
            return False
    made = graph.makes_of(start)
    return any(bare_kind(graph.kind[reader]) == "nll_loss_forward" for t in made for reader in graph.readers_of(t))
