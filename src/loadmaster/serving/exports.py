"""Exports: a placement of modules in the words of the runtimes that people use.

Each target can say a different part of a placement. `ExportTarget` names that part, so that the search stays within it
and nothing is lost on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from loadmaster.errors import InvalidPlan, UnknownName
from loadmaster.serving.experts import Apart
from loadmaster.serving.overheads import ACCELERATE, Overheads

TOGETHER = Apart(parts=0)


@dataclass(frozen=True)
class ModuleRow:
    """Where one unit goes.

    Attributes:
        module: path.
        home: device that keeps its weights; another than `device`: they are streamed.
        weight_bytes: of its weights.
        time_ns: of its work for one batch of requests, modelled.
        cache_bytes: that it keeps beside its weights.
        tied: module with which it shares its weights, which are counted there; "": none.
    """

    module: str
    device: str
    home: str
    weight_bytes: int
    time_ns: int = 0
    cache_bytes: int = 0
    tied: str = ""


@dataclass(frozen=True)
class ModulePlan:
    """A placement as it is saved: rows in the order of the model, devices in the order of the cluster.

    Attributes:
        model: its name.
        devices: names, in the order of the cluster.
        kinds: [devices]
        memory_bytes: [devices]
        rows: where each unit goes.
        working_bytes: that a step takes beside weights and cache; empty: not known.
    """

    model: str
    devices: tuple[str, ...]
    kinds: tuple[str, ...]  # [devices]
    memory_bytes: tuple[int, ...]
    rows: tuple[ModuleRow, ...]
    working_bytes: tuple[int, ...] = ()  # [devices]

    @property
    def gpus(self) -> list[str]:
        """Devices as CUDA numbers them; the host has none."""
        found = [name for name, kind in zip(self.devices, self.kinds, strict=True) if not kind.startswith("cpu")]
        return found

    def index(self, device: str) -> int | str:
        return "cpu" if self.on_host(device) else self.gpus.index(device)

    def on_host(self, device: str) -> bool:
        return device not in self.gpus

    @property
    def layers(self) -> list[ModuleRow]:
        """Rows that are layers of the largest list of layers."""
        lists: dict[str, list[ModuleRow]] = {}
        for row in self.rows:
            path, _, number = row.module.rpartition(".")
            if number.isdecimal() and not any(part.isdecimal() for part in path.split(".")):  # experts have no layers
                lists.setdefault(path, []).append(row)
        return max(lists.values(), key=len, default=[])


@dataclass(frozen=True)
class ExportTarget:
    """A runtime, and how much of a placement it can take.

    Attributes:
        name: as typed on the command line.
        write: makes the file's text of a placement.
        contiguous: stages of neighbouring layers, devices in order.
        stream: weights may stay in host memory and be sent when needed.
        compute_on_host: modules may run there.
        experts: how those of a layer may be placed apart from it.
        one_way: all modules in host memory are streamed to one GPU, or all are computed there.
        host_first: layers that stay on the host are the first ones.
        one_gpu: it takes one GPU and the host beside it, no more.
        overheads: what it adds to the rates of the hardware, where that was measured.
    """

    name: str
    write: Callable[[ModulePlan], str]
    contiguous: bool
    stream: bool
    compute_on_host: bool
    experts: Apart = TOGETHER
    one_way: bool = False
    host_first: bool = False
    one_gpu: bool = False
    overheads: Overheads | None = None


def _device_map(plan: ModulePlan) -> str:
    """Hugging Face `from_pretrained(device_map=…)` and accelerate's `dispatch_model`: "cpu" is streamed to the main
    device, which is the first GPU named, or computed there when every such module is (`main_device="cpu"`)."""
    _either_way(plan)
    _experts_whole(plan)
    return json.dumps({row.module: plan.index(row.home) for row in plan.rows}, indent=2)


def _experts_whole(plan: ModulePlan) -> None:
    """Experts are one module a layer in transformers, which runs where its layer does: its sum is added there."""
    blocks = {row.module: row for row in plan.layers}
    for row in plan.rows:
        block = next((b for path, b in blocks.items() if row.module.startswith(f"{path}.")), None)
        if block is not None and (row.module.rpartition(".")[2][0].isdigit() or row.device != block.device):
            what = f"'{row.module}' is computed apart from '{block.module}' or from its other experts"
            raise InvalidPlan(what, plan.model, "plan with --for device-map: it can stream all experts of a layer")


def _either_way(plan: ModulePlan) -> None:
    """dispatch_model computes all host modules on the host, or streams all of them: its main device decides."""
    away = {row.device == row.home for row in plan.rows if plan.on_host(row.home)}
    if len(away) > 1:
        what = "some modules in host memory are computed there and others are streamed"
        raise InvalidPlan(what, plan.model, "plan with --for device-map: it can say one of the two")


def main_device(plan: ModulePlan) -> int | str:
    """`main_device` of `dispatch_model` for this plan."""
    computed = any(plan.on_host(row.device) for row in plan.rows)
    return "cpu" if computed or not plan.gpus else 0


def _stages(plan: ModulePlan) -> list[tuple[str, int]]:
    """(device, layers) of consecutive stages; refuses what is no pipeline."""
    if not plan.layers:
        raise InvalidPlan("the plan has no list of layers", plan.model, "only stacks of layers can be cut into stages")
    stages = [(device, len(list(rows))) for device, rows in groupby(plan.layers, key=lambda row: row.device)]
    if len({device for device, _ in stages}) < len(stages):
        raise InvalidPlan("a device has two stages", plan.model, "plan with --for, which keeps stages whole")
    if any(row.device != row.home for row in plan.rows):
        raise InvalidPlan("some weights are streamed", plan.model, "this runtime cannot: plan with --for")
    return stages


def _vllm(plan: ModulePlan) -> str:
    # docs.vllm.ai, environment variables: VLLM_PP_LAYER_PARTITION, layers of each pipeline rank joined with commas.
    stages = _stages(plan)
    order = ",".join(str(plan.index(device)) for device, _ in stages)
    counts = ",".join(str(count) for _, count in stages)
    lines = [f"CUDA_VISIBLE_DEVICES={order}", f"VLLM_PP_LAYER_PARTITION={counts}"]
    return "\n".join([*lines, f"# vllm serve MODEL --pipeline-parallel-size {len(stages)}"])


def _llama_cpp(plan: ModulePlan) -> str:
    """`-ngl` counts layers from the end, the output layer included; `-ts` splits them over the GPUs in proportion;
    `-ot` names tensors that stay on the host: layers in the middle, and experts (github.com/ggml-org/llama.cpp,
    tools/server/README.md: --override-tensor PATTERN=BUFFER_TYPE, several joined with commas)."""
    layers, words = plan.layers, list[str]()
    on_host = [i for i, row in enumerate(layers) if plan.on_host(row.device)]
    first = len(on_host) if on_host == list(range(len(on_host))) else 0
    offloaded = layers[first:]
    words.append(f"-ngl {len(offloaded) + 1 if offloaded else 0}")
    at, counts = offloaded[-1].device if offloaded else "", [0] * len(plan.gpus)
    at = next((row.device for row in offloaded if not plan.on_host(row.device)), at)
    for row in offloaded:
        at = at if plan.on_host(row.device) else row.device  # a layer on the host counts with the one before it
        counts[plan.gpus.index(at)] += 1
    if offloaded:
        counts[plan.gpus.index(at)] += 1  # the head, which goes with the last layer
    if len(plan.gpus) > 1 and offloaded:
        words.append("-ts " + ",".join(map(str, counts)))
    patterns = [f"blk\\.({_numbers(inside)})\\.=CPU"] if (inside := [i for i in on_host if i >= first]) else []
    if experts := _host_experts(plan):
        patterns.append(f"blk\\.({_numbers(experts)})\\.ffn_(up|down|gate|gate_up)_exps\\.=CPU")
    if patterns:
        words.append(f"-ot '{','.join(patterns)}'")
    return "llama-server -m MODEL.gguf " + " ".join(words)


def _numbers(layers: Sequence[int]) -> str:
    return "|".join(map(str, layers))


def _host_experts(plan: ModulePlan) -> list[int]:
    """Layers on a GPU whose experts are computed on the host."""
    found = []
    for number, layer in enumerate(plan.layers):
        places = {row.device for row in plan.rows if row.module.startswith(f"{layer.module}.")} or {layer.device}
        if len(places) > 1:
            what = f"the experts of '{layer.module}' are on several devices"
            raise InvalidPlan(what, plan.model, "plan with --for llama.cpp: it keeps those of a layer together")
        if places != {layer.device} and not plan.on_host(*places):
            what = f"the experts of '{layer.module}' are on another GPU"
            raise InvalidPlan(
                what, plan.model, "plan with --for llama.cpp: it keeps them with their layer, or on the host"
            )
        if places != {layer.device}:
            found.append(number)
    return found


# A decoder of transformers 5 cannot be traced by `pipeline`: its outputs hold a cache, and without one its masks are
# handed from stage to stage by names that get lost (torch 2.13). Its parts called one after the other give its logits.
_DECODER_STAGE = """import torch
from torch.distributed.pipelining import PipelineStage

class Stage(torch.nn.Module):
    def __init__(self, model, start, end):
        super().__init__()
        parts, last = model.model, end == len(model.model.layers)
        self.embed, self.rotary = parts.embed_tokens if start == 0 else None, parts.rotary_emb
        self.layers = torch.nn.ModuleList(parts.layers[start:end])
        self.norm, self.head = (parts.norm, model.lm_head) if last else (None, None)

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        places = torch.arange(x.shape[1], device=x.device)[None]
        angles = self.rotary(x, places)
        for layer in self.layers:
            x = layer(x, position_embeddings=angles, position_ids=places)
        return x if self.head is None else self.head(self.norm(x))

windows = getattr(model.config, "use_sliding_window", False)
assert model.config.model_type in ("llama", "qwen2", "qwen3") and not windows, "others are built in another way"
starts = (STARTS)
# stage i runs on: DEVICES
stage = PipelineStage(Stage(model, starts[rank], starts[rank + 1]), rank, len(starts) - 1, device)"""


def _pipelining(plan: ModulePlan) -> str:
    # docs.pytorch.org, torch.distributed.pipelining: split_spec maps a module path to where the cut is.
    stages, at, cuts = _stages(plan), 0, list[int]()
    for _, count in stages[:-1]:
        at += count
        cuts.append(at)
    devices = ", ".join(device for device, _ in stages)
    if any(row.module.endswith("rotary_emb") for row in plan.rows):
        starts = ", ".join(map(str, (0, *cuts, len(plan.layers))))
        return _DECODER_STAGE.replace("STARTS", starts).replace("DEVICES", devices)
    spec = ", ".join(f'"{plan.layers[cut].module}": SplitPoint.BEGINNING' for cut in cuts)
    return "\n".join(
        [
            "from torch.distributed.pipelining import SplitPoint, pipeline",
            f"split_spec = {{{spec}}}",
            f"# stage i runs on: {devices}",
            "pipe = pipeline(module=model, mb_args=(example,), split_spec=split_spec)",
        ]
    )


def _megatron(plan: ModulePlan) -> str:
    # Megatron-LM, --pipeline-model-parallel-layout: E embedding, t decoder layer, L loss; stages joined with |.
    stages = _stages(plan)
    parts = [f"t*{count}" if count > 1 else "t" for _, count in stages]
    parts[0], parts[-1] = f"E{parts[0]}", f"{parts[-1]}L"
    order = ",".join(str(plan.index(device)) for device, _ in stages)
    words = f'--pipeline-model-parallel-size {len(stages)} --pipeline-model-parallel-layout "{"|".join(parts)}"'
    return f"CUDA_VISIBLE_DEVICES={order} {words}"


def _onnxruntime(plan: ModulePlan) -> str:
    """`session.layer_assignment_settings`: device(=annotation, …); … where nodes carry the path of their module as
    `layer_ann`. Without = an annotation is a prefix, and layers.1 would be layers.10 too. A session has one GPU
    (onnxruntime.ai, docs/execution-providers, layer annotations and capacity-aware partitioning)."""
    used = [device for device in plan.gpus if any(row.device == device for row in plan.rows)]
    if len(used) > 1:
        what = f"the plan is for {len(used)} GPUs, and a session of ONNX Runtime has one"
        raise InvalidPlan(what, plan.model, "plan with --for onnxruntime: one GPU and the host")
    parts = []
    for device in plan.devices:
        if modules := [row.module for row in plan.rows if row.device == device]:
            label = "cpu" if plan.on_host(device) else f"gpu:{plan.index(device)}"
            parts.append(f"{label}({', '.join('=' + re.sub(r'[(),;=]', '_', module) for module in modules)})")
    return json.dumps({"session.layer_assignment_settings": "; ".join(parts)}, indent=2)


TARGETS: dict[str, ExportTarget] = {
    target.name: target
    for target in (
        # transformers keeps all experts of a layer in one module, which is sent whole.
        ExportTarget(
            "device-map",
            _device_map,
            contiguous=False,
            stream=True,
            compute_on_host=True,
            experts=Apart(1, True),
            one_way=True,
            overheads=ACCELERATE,
        ),
        ExportTarget("vllm", _vllm, contiguous=True, stream=False, compute_on_host=False),
        # GGUF files keep all experts of a layer in three tensors (ffn_up_exps, ffn_gate_exps, ffn_down_exps).
        ExportTarget(
            "llama.cpp",
            _llama_cpp,
            contiguous=True,
            stream=False,
            compute_on_host=True,
            experts=Apart(1),
            host_first=True,
        ),
        ExportTarget("pipelining", _pipelining, contiguous=True, stream=False, compute_on_host=True),
        ExportTarget("megatron", _megatron, contiguous=True, stream=False, compute_on_host=False),
        ExportTarget("onnxruntime", _onnxruntime, contiguous=False, stream=False, compute_on_host=True, one_gpu=True),
    )
}
HOST_LAYERS_FIRST = next(target for target in TARGETS.values() if target.host_first)


def target_of(name: str) -> ExportTarget:
    """The runtime of that name; UnknownName with the nearest ones."""
    if name not in TARGETS:
        raise UnknownName.among("target", name, list(TARGETS))
    return TARGETS[name]


def module_table(plan: ModulePlan) -> list[tuple[str, str, str, int, int]]:
    """(modules, device, weights, bytes, ns of work): neighbours with the same fate in one row, as people copy it.
    Experts that are not all where their layer is come after the rest."""
    layers = {row.module: row for row in plan.layers}
    inside: dict[str, list[ModuleRow]] = {}
    for row in plan.rows:
        owner = next((path for path in layers if row.module.startswith(f"{path}.")), row.module)
        inside.setdefault(owner, []).append(row)
    whole = {path for path, rows in inside.items() if len({(row.device, row.home) for row in rows}) == 1}
    first = [row for path, rows in inside.items() for row in (rows if path in whole else rows[:1])]
    experts = [row for path, rows in inside.items() if path not in whole for row in rows[1:]]
    return [*_runs(first), *_runs(experts)]


def _runs(rows: Sequence[ModuleRow]) -> Iterator[tuple[str, str, str, int, int]]:
    for (device, home), same in groupby(rows, key=lambda row: (row.device, row.home)):
        members = list(same)
        label = members[0].module if len(members) == 1 else f"{members[0].module} … {members[-1].module}"
        fate = "resident" if device == home else f"streamed from {home}"
        yield label, device, fate, sum(row.weight_bytes for row in members), sum(row.time_ns for row in members)
