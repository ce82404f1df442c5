"""What kind of work an op is, by its name in torch or ONNX: decides what may be fused with what."""

from __future__ import annotations

import re
from functools import lru_cache

HEAVY, ELEMENTWISE, REDUCTION, OPAQUE = "heavy", "elementwise", "reduction", "opaque"

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


@lru_cache(maxsize=4096)
def work_of(kind: str) -> str:
    """HEAVY, ELEMENTWISE, REDUCTION or OPAQUE. Unknown ops count as elementwise only if torch or ONNX names are
    plain."""
    name = kind.lower()
    if name.startswith("optim."):
        return OPAQUE
    name = re.sub(r"^(aten|prims|onnx|ai\.onnx)\.", "", name)
    name = name.split(".")[0].split("::")[-1]
    bare = name.rstrip("_")
    for pattern, work in ((_OPAQUE, OPAQUE), (_HEAVY, HEAVY), (_REDUCTION, REDUCTION)):
        if pattern.match(bare):
            return work
    return ELEMENTWISE if re.fullmatch(r"_?[a-z0-9_]+", bare) else OPAQUE
