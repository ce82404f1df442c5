"""Every name a user can type. Strings only: nothing is imported until it is used.

A name leads to "module:Class", so that listing methods and importers takes no torch and no numba. A line here is all
that a new method, objective or importer needs to be found by the command line, by `make_method` and by the tests
that hold every method to what all promise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

# name -> "module:Class", or "module:Class(settings)" for a named setting of one
METHODS: Mapping[str, str] = {
    "auto": "loadmaster.methods.default.auto:Auto",
    "joint": "loadmaster.methods.default.auto:Auto(recompute=no,offload=no)",
    "placement": "loadmaster.methods.default.auto:Auto(fusion=none,recompute=no,offload=no)",
    "one-device": "loadmaster.baselines.simple:OneDevice",
    "round-robin": "loadmaster.baselines.simple:RoundRobin",
    "random": "loadmaster.baselines.simple:Random",
    "expert": "loadmaster.baselines.expert:Expert",
    "heft": "loadmaster.baselines.lists.schedulers:Heft",
    "etf": "loadmaster.baselines.lists.schedulers:Etf",
    "rolling": "loadmaster.baselines.lists.rolling:Rolling",
    "multilevel": "loadmaster.methods.multilevel.multilevel:Multilevel",
    "greedy-fusion": "loadmaster.baselines.fusion.greedy:GreedyFusion",
    "random-fusion": "loadmaster.methods.fusion_search:RandomFusion",
    "anneal-fusion": "loadmaster.methods.fusion_search:AnnealFusion",
    "separate": "loadmaster.methods.separate:Separate",
    "cpop": "loadmaster.baselines.lists.schedulers:Cpop",
    "sct": "loadmaster.baselines.lists.schedulers:Etf(favourite=yes)",
    "m-etf": "loadmaster.baselines.lists.schedulers:Etf(memory=yes)",
    "m-sct": "loadmaster.baselines.lists.schedulers:Etf(memory=yes,favourite=yes)",
    "m-heft": "loadmaster.baselines.lists.schedulers:Heft(memory=yes)",
    "metis": "loadmaster.baselines.partition.partitioners:Metis",
    "scotch": "loadmaster.baselines.partition.partitioners:Scotch",
    "kahip": "loadmaster.baselines.partition.partitioners:Kahip",
    "mtkahypar": "loadmaster.baselines.partition.partitioners:MtKahypar",
    "gp-dfs": "loadmaster.baselines.partition.partitioners:GpDfs",
    "pipeline": "loadmaster.baselines.pipeline.split:PipelineSplit",
    "downsets": "loadmaster.baselines.downsets.downsets:Downsets",
    "cp-sat": "loadmaster.methods.exact.cp_sat:CpSat",
    "branch-and-bound": "loadmaster.methods.exact.branching.branch_and_bound:BranchAndBound",
    "local-search": "loadmaster.methods.annealing.anneal:Anneal(temperature=0)",
    "anneal": "loadmaster.methods.annealing.anneal:Anneal",
    "brkga": "loadmaster.baselines.genetic.brkga:Brkga",
    "brkga-5k": "loadmaster.baselines.genetic.brkga:Brkga(evaluations=5000)",
    "tuned-brkga": "loadmaster.baselines.genetic.brkga:TunedBrkga",
    "regal": "loadmaster.papers.methods:Regal",
    "gas": "loadmaster.papers.methods:Regal(network=sequence)",
    "go": "loadmaster.papers.methods:Go",
    "go-one": "loadmaster.papers.methods:Go(scratch=yes)",
    "placeto": "loadmaster.papers.methods:Placeto",
    "hdp": "loadmaster.papers.methods:Hdp",
    "rnn": "loadmaster.papers.methods:Rnn",
    "memory-order": "loadmaster.baselines.memory_order:MemoryOrder",
    "anneal-order": "loadmaster.methods.memory.anneal_order:AnnealOrder",
    "recompute": "loadmaster.methods.memory.recompute:Recompute",
    "sqrt-checkpointing": "loadmaster.methods.memory.checkpoints:SqrtCheckpointing",
    "layer-checkpointing": "loadmaster.methods.memory.checkpoints:LayerCheckpointing",
    "min-cut": "loadmaster.methods.memory.checkpoints:MinCut",
    "inline": "loadmaster.methods.memory.inlining:Inline",
    "whole-modules": "loadmaster.methods.whole:WholeModules",
    "islands": "loadmaster.methods.islands:Islands",
    "best-of": "loadmaster.baselines.simple:BestOf",
}

# name -> "module:Class"
OBJECTIVES: Mapping[str, str] = {
    "step-time": "loadmaster.problem.objective:StepTime",
    "peak-memory": "loadmaster.problem.objective:PeakMemory",
    "energy": "loadmaster.problem.objective:Energy",
    "throughput": "loadmaster.problem.objective:Throughput",
}

# suffix of a model file -> "module:function" that reads it
IMPORTERS: Mapping[str, str] = {
    ".json": "loadmaster.importers.contents:load_json",
    ".json.gz": "loadmaster.importers.contents:load_json",
    ".json.xz": "loadmaster.importers.contents:load_json",
    ".onnx": "loadmaster.importers.onnx.model:load_onnx",
    ".pt2": "loadmaster.importers.torch.exported:load_pt2",
    ".hlo": "loadmaster.importers.contents:load_xla",
    ".hlo.gz": "loadmaster.importers.contents:load_xla",
    ".hlo.xz": "loadmaster.importers.contents:load_xla",
    ".pb.gz": "loadmaster.importers.contents:load_protobuf",
    ".pb.xz": "loadmaster.importers.contents:load_protobuf",
    ".pb": "loadmaster.importers.contents:load_protobuf",
    ".pbtxt": "loadmaster.importers.contents:load_textproto",
    ".txt": "loadmaster.importers.contents:load_text",
    ".tflite": "loadmaster.importers.contents:load_tflite",
    ".stg": "loadmaster.importers.contents:load_tasks",
    ".mlir": "loadmaster.importers.contents:load_xla",
    ".stablehlo": "loadmaster.importers.contents:load_xla",
}

# what stands before the ":" of a file in a format that its suffix does not tell -> "module:function" that reads it
FORMATS: Mapping[str, str] = {
    "msr": "loadmaster.importers.benchmarks.msr:load_msr",
    "pipedream": "loadmaster.importers.benchmarks.pipedream:load_pipedream",
}


@cache
def _added() -> dict[str, str]:
    """What installed packages add; looked for once."""
    return {entry.name: entry.value for entry in entry_points(group="loadmaster.methods")}


def named_by_old_plugins() -> set[str]:
    """Names in the group that methods were once added to, so that whoever asks for one hears what to change."""
    return {entry.name for entry in entry_points(group="loadmaster.optimizers")}


def methods() -> dict[str, str]:
    """Ours and those that installed packages add (entry points of the group loadmaster.methods); ours win where
    names are the same."""
    return {**_added(), **METHODS}


def is_callable(model: str) -> bool:
    """package.module:callable, which builds a torch module."""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", model)) and not model.startswith("zoo:")
