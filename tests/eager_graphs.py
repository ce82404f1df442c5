"""What Inductor would compile, run as it is: AOTAutograd's graphs after the same cut, without the seconds it takes.

Kernels are eager torch's, so results are its bits; elementwise results that Inductor leaves out take memory here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run_graphs(module: Any, inputs: Any, settings: Any) -> Callable[..., Any]:
    """In the place of `backend._by_inductor`; the partitioner is the one that Inductor was told."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import config

    from loadmaster.runtime.spreading import _boxed

    def run(graph: Any, given: Any) -> Callable[..., Any]:
        return _boxed(graph)

    cut = config.custom_partitioner_fn or min_cut_rematerialization_partition
    compiled: Any = aot_autograd(fw_compiler=run, bw_compiler=run, partition_fn=cut)(module, inputs)
    return compiled  # type: ignore[no-any-return]
