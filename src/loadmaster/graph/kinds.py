"""What kind of work an op is, and how a graph compiler fuses it, by its name in torch or ONNX.

Two questions, both answered from the bare name ("aten.add_.Tensor" is "add"): `work_of`, by which cost models share
efficiencies and fusion decides what is worth joining, and `fusing_of`, which says how torch's Inductor lowers it. A
name that is not known counts as elementwise if it looks like an op of torch or ONNX and as opaque otherwise, and then
it stays a kernel of its own: a wrong guess costs time and changes no result.

>>> work_of("aten.mm.default"), work_of("aten.add_.Tensor"), work_of("aten.sum.dim_IntList")
('heavy', 'elementwise', 'reduction')
>>> fusing_of("aten.embedding.default"), fusing_of("aten.mm.default")
('gathering', 'alone')
"""

from __future__ import annotations

import re
from functools import lru_cache

HEAVY, ELEMENTWISE, REDUCTION, OPAQUE = "heavy", "elementwise", "reduction", "opaque"
ALONE, POINTWISE, REDUCING, GATHERING, SCATTERING = "alone", "pointwise", "reducing", "gathering", "scattering"

_HEAVY = re.compile(
    r"^(mm|bmm|addmm|baddbmm|matmul|linear|gemm|conv|convolution|convtranspose|conv\dd|convolution_backward|dot|einsum"
    r"|.*attention.*|.*_mm|_?lstm|gru|rnn|qlinear.*|quantizedconv|convinteger|matmulinteger)$"
)
_REDUCTION = re.compile(
    r"^(sum|mean|amax|amin|max|min|var|var_mean|std|prod|any|all|norm|logsumexp|_?softmax(_backward_data)?|_?log_softmax(_backward_data)?"
    r"|native_(layer|batch|group)_norm(_backward)?|_native_batch_norm.*|layernormalization|batchnormalization|logsoftmax|reduce.*"
    r"|argmax|argmin|nll_loss.*|lrn|globalaveragepool|linalg_vector_norm|_fused_rms_norm.*)$"
)
# They move data in patterns that a pointwise loop does not, keep state, or draw random numbers.
_OPAQUE = re.compile(
    r"^(embedding.*|gather.*|scatter.*|index.*|_?index_put.*|sort|topk|cumsum|nonzero|unique|multinomial|bernoulli|rand.*|native_dropout"
    r"|dropout|while|call|conditional|fusion|rng|iota|fft|cholesky|.*pool.*|upsample.*|resize|_?unsafe_index.*|empty.*|optim\..*|copy_|loop|if|scan|constant.*|shape|size|nonmaxsuppression"
    r"|roialign|cat|concat|split.*|slice_backward|select_backward|slice_scatter|as_strided.*|unfold.*|im2col|col2im|stack|roll|flip|pad.*"
    r"|constant_pad_nd|constant_pad_nd_backward|_grouped_mm_offsets|histc|bincount|one_hot|masked_select|stay)$"
)
# Each element of what they make is looked up in what they read, at a place of its own.
_GATHERING = re.compile(
    r"^(embedding|gather.*|index|index_select|_?unsafe_index|.*pool.*|upsample.*|resize|cat|concat|stack|slice_backward|select_backward"
    r"|slice_scatter|select_scatter|as_strided_scatter|unfold.*|im2col|roll|flip|pad.*|constant_pad_nd|constant_pad_nd_backward|one_hot)$"
)
# Each element of what they read goes to a place of its own in what they make.
_SCATTERING = re.compile(
    r"^(embedding_dense_backward|scatter.*|index_add|index_copy|_?index_put.*|_?unsafe_index_put.*|col2im)$"
)
_DRAWING = re.compile(r"^(bernoulli|rand.*|native_dropout|dropout)$")
# They need a number for all of a tensor before they can make the first element: two kernels or more for a compiler.
_TWICE = re.compile(r"^(_?native_(batch|group)_norm.*|batchnormalization|groupnormalization|instancenormalization)$")


def draws(kind: str) -> bool:
    """Whether it draws random numbers, by its name."""
    return bool(_DRAWING.match(bare_name(kind)))


def bare_name(kind: str) -> str:
    """Without namespace, overload and the underscore of what writes in place."""
    name = re.sub(r"^(aten|prims|onnx|ai\.onnx)\.", "", kind.lower())
    return name.split(".")[0].split("::")[-1].rstrip("_")


@lru_cache(maxsize=4096)
def fusing_of(kind: str) -> str:
    """ALONE, POINTWISE, REDUCING, GATHERING or SCATTERING: how Inductor lowers it. What it calls from a library (matrix
    products, convolutions, attention) stays alone."""
    work, bare = work_of(kind), bare_name(kind)
    if bare == "_native_batch_norm_legit_no_training":  # its statistics are given
        return POINTWISE
    if work == HEAVY or kind.lower().startswith("optim.") or _TWICE.match(bare):
        return ALONE
    for pattern, way in ((_SCATTERING, SCATTERING), (_GATHERING, GATHERING), (_DRAWING, POINTWISE)):
        if pattern.match(bare):
            return way
    if re.fullmatch(r"nll_loss(2d)?_backward", bare):
        return POINTWISE
    return {ELEMENTWISE: POINTWISE, REDUCTION: REDUCING}.get(work, ALONE)


@lru_cache(maxsize=4096)
def work_of(kind: str) -> str:
    """HEAVY, ELEMENTWISE, REDUCTION or OPAQUE. Unknown ops count as elementwise only if torch or ONNX names are
    plain."""
    if kind.lower().startswith("optim."):
        return OPAQUE
    bare = bare_name(kind)
    for pattern, work in ((_OPAQUE, OPAQUE), (_HEAVY, HEAVY), (_REDUCTION, REDUCTION)):
        if pattern.match(bare):
            return work
    return ELEMENTWISE if re.fullmatch(r"_?[a-z0-9_]+", bare) else OPAQUE
