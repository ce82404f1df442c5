"""Every name a user can type. Strings only: nothing is imported until it is used.

A name leads to "module:Class", so that listing methods and importers takes no torch and no numba. A line here is all
that a new method, objective or importer needs to be found by the command line, by `make_optimizer` and by the tests
that hold every method to what all promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

# name -> "module:Class", or "module:Class(settings)" for a named setting of one
OPTIMIZERS: Mapping[str, str] = {
    "auto": "loadmaster.optimizers.default.auto:Auto",
    "joint": "loadmaster.optimizers.default.auto:Auto(recompute=no,offload=no)",
    "placement": "loadmaster.optimizers.default.auto:Auto(fusion=none,recompute=no,offload=no)",
    "one-device": "loadmaster.optimizers.simple:OneDevice",
    "round-robin": "loadmaster.optimizers.simple:RoundRobin",
    "random": "loadmaster.optimizers.simple:Random",
    "expert": "loadmaster.optimizers.expert.expert:Expert",
    "heft": "loadmaster.optimizers.lists.schedulers:Heft",
    "etf": "loadmaster.optimizers.lists.schedulers:Etf",
    "rolling": "loadmaster.optimizers.lists.rolling:Rolling",
    "multilevel": "loadmaster.optimizers.multilevel.multilevel:Multilevel",
    "greedy-fusion": "loadmaster.optimizers.fusion.greedy:GreedyFusion",
    "random-fusion": "loadmaster.optimizers.fusion.search:RandomFusion",
    "anneal-fusion": "loadmaster.optimizers.fusion.search:AnnealFusion",
    "separate": "loadmaster.optimizers.separate:Separate",
    "cpop": "loadmaster.optimizers.lists.schedulers:Cpop",
    "sct": "loadmaster.optimizers.lists.schedulers:Etf(favourite=yes)",
    "m-etf": "loadmaster.optimizers.lists.schedulers:Etf(memory=yes)",
    "m-sct": "loadmaster.optimizers.lists.schedulers:Etf(memory=yes,favourite=yes)",
    "m-heft": "loadmaster.optimizers.lists.schedulers:Heft(memory=yes)",
    "metis": "loadmaster.optimizers.partition.partitioners:Metis",
    "scotch": "loadmaster.optimizers.partition.partitioners:Scotch",
    "kahip": "loadmaster.optimizers.partition.partitioners:Kahip",
    "mtkahypar": "loadmaster.optimizers.partition.partitioners:MtKahypar",
    "gp-dfs": "loadmaster.optimizers.partition.partitioners:GpDfs",
    "pipeline": "loadmaster.optimizers.pipeline.split:PipelineSplit",
    "downsets": "loadmaster.optimizers.downsets.downsets:Downsets",
    "cp-sat": "loadmaster.optimizers.exact:CpSat",
    "branch-and-bound": "loadmaster.optimizers.branching.branch_and_bound:BranchAndBound",
    "local-search": "loadmaster.optimizers.annealing.anneal:LocalSearch",
    "anneal": "loadmaster.optimizers.annealing.anneal:Anneal",
    "brkga": "loadmaster.optimizers.genetic.brkga:Brkga",
    "brkga-5k": "loadmaster.optimizers.genetic.brkga:Brkga(evaluations=5000)",
    "tuned-brkga": "loadmaster.optimizers.genetic.brkga:TunedBrkga",
    "regal": "loadmaster.learn.regal2020.optimizer:Regal",
    "gas": "loadmaster.learn.regal2020.optimizer:Regal(network=sequence)",
    "go": "loadmaster.learn.go2020.optimizer:Go",
    "go-one": "loadmaster.learn.go2020.optimizer:Go(scratch=yes)",
    "placeto": "loadmaster.learn.placeto2019.optimizer:Placeto",
    "placeto-published": "loadmaster.papers.methods:PlacetoPublished",
    "hdp": "loadmaster.papers.methods:Hdp",
    "rnn": "loadmaster.papers.methods:Rnn",
    "memory-order": "loadmaster.optimizers.memory.orders:MemoryOrder",
    "anneal-order": "loadmaster.optimizers.memory.orders:AnnealOrder",
    "recompute": "loadmaster.optimizers.memory.recompute:Recompute",
    "sqrt-checkpointing": "loadmaster.optimizers.memory.checkpoints:SqrtCheckpointing",
    "layer-checkpointing": "loadmaster.optimizers.memory.checkpoints:LayerCheckpointing",
    "min-cut": "loadmaster.optimizers.memory.checkpoints:MinCut",
    "inline": "loadmaster.optimizers.memory.inlining:Inline",
    "whole-modules": "loadmaster.optimizers.whole:WholeModules",
    "islands": "loadmaster.optimizers.islands:Islands",
    "best-of": "loadmaster.optimizers.simple:BestOf",
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
    return {entry.name: entry.value for entry in entry_points(group="loadmaster.optimizers")}


def optimizers() -> dict[str, str]:
    """Ours and those that installed packages add (entry points of the group loadmaster.optimizers); ours win where
    names are the same."""
    return {**_added(), **OPTIMIZERS}
