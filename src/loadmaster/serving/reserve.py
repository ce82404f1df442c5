"""Reserve: what a runtime takes of a GPU beside weights, cache and what the simulator holds. Each with its source.

A plan's memory is what is left of a device after the reserve of its runtime, subtracted once: here for llama.cpp, whose
compute buffers are part of it, and by `left_of` for the runtimes whose activations the simulator counts itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadmaster.cluster import Cluster
from loadmaster.serving.language import Language

if TYPE_CHECKING:
    from loadmaster.serving.llama_options import Options

MIB = 2**20
SMALLEST = 2048 * MIB


@dataclass(frozen=True)
class Reserve:
    """Of one runtime, on each GPU it uses.

    Attributes:
        fixed_bytes: whatever the size of the GPU.
        share: of its memory.
        source: where the figures come from.
    """

    fixed_bytes: int
    share: float
    source: str

    def of(self, memory_bytes: int) -> int:
        """Bytes of a GPU with so much memory; nothing of less than 2 GiB, which is a limit and no card."""
        return 0 if memory_bytes < SMALLEST else round(self.fixed_bytes + self.share * memory_bytes)


_CONTEXT = "CUDA context 527 MiB, measured with torch on an H200"
RESERVES = {
    "device-map": Reserve(527 * MIB, 0.02, f"{_CONTEXT}; 2 % for the allocator, assumed"),
    "pipelining": Reserve(783 * MIB, 0.02, f"{_CONTEXT}; 256 MiB for NCCL and 2 % for the allocator, assumed"),
    "megatron": Reserve(783 * MIB, 0.02, f"{_CONTEXT}; 256 MiB for NCCL and 2 % for the allocator, assumed"),
    "onnxruntime": Reserve(527 * MIB, 0.02, f"{_CONTEXT}; 2 % for the arena, assumed"),
    # docs.vllm.ai, engine arguments: weights, activations and cache share gpu_memory_utilization, 0.9 by default.
    "vllm": Reserve(0, 0.1, "vLLM's documentation: --gpu-memory-utilization 0.9"),
    "llama.cpp": Reserve(783 * MIB, 0.0, f"{_CONTEXT}; 256 MiB for pools, assumed"),
}
ANY = RESERVES["device-map"]


def reserve_of(runtime: str | None) -> Reserve:
    """Of that runtime; of torch where none is named."""
    return RESERVES.get(runtime or "", ANY)


def left_of(cluster: Cluster, runtime: str | None) -> Cluster:
    """The cluster with what the runtime leaves of each GPU."""
    reserve = reserve_of(runtime)

    def left(kind: str, memory: int) -> int:
        return memory if kind.startswith("cpu") else memory - reserve.of(memory)

    devices = tuple(replace(d, memory_bytes=left(d.kind, d.memory_bytes)) for d in cluster.devices)
    return replace(cluster, devices=devices)


def compute_bytes(model: Language, options: Options, head: bool) -> int:
    """llama.cpp's compute buffer on a device with layers, with the head or without; with flash attention.

    Fitted above what `llama-fit-params` says of nine models at 4,096 to 131,072 tokens (benchmarks/serving_exports.py):
    numbers of 32 bits for each token read at a time. Where the layers of several GPUs overlap, their inputs are there
    four times (ggml-backend.cpp, GGML_SCHED_MAX_COPIES); that part is read from the source, not measured.
    """
    copies = 4 if len(options.split) > 1 and options.offloaded > len(model.layers) and not options.away else 1
    layer = 3 * model.inner + (17 + model.chosen) * model.width
    last = model.vocabulary + 12 * model.width if head else 0
    inputs = options.context * (1 + copies) + (4 * model.width if copies > 1 else 0)
    return 4 * options.micro * (max(layer, last) + inputs) + _unpacked(model, options)


def _unpacked(model: Language, options: Options) -> int:
    """A quantised cache is unpacked to 16 bits, a layer at a time, while a prompt is read (ggml-cuda/fattn)."""
    if options.key == options.value == "f16":
        return 0
    return 2 * options.context * max(layer.key + layer.value for layer in model.layers)


def streamed_bytes(model: Language, on_host: Sequence[int], head: bool) -> int:
    """Room on the first GPU for weights of the host that are sent to it while a prompt is read: the largest layer's.

    Read from the source (ggml-backend.cpp, copies of a split's inputs), not measured.
    """
    sizes = [model.layers[i].expert_bytes if model.experts else model.layers[i].weight_bytes for i in on_host]
    return max([*sizes, model.output_bytes if head else 0])
