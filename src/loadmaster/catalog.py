"""Every name a user can type. Strings only: nothing is imported until it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

# name -> "module:Class", or "module:Class(settings)" for a named setting of one
OPTIMIZERS: Mapping[str, str] = {
    "auto": "loadmaster.optimizers.auto:Auto",
    "one-device": "loadmaster.optimizers.simple:OneDevice",
    "round-robin": "loadmaster.optimizers.simple:RoundRobin",
    "random": "loadmaster.optimizers.simple:Random",
    "expert": "loadmaster.optimizers.expert:Expert",
    "heft": "loadmaster.optimizers.list_schedulers:Heft",
    "etf": "loadmaster.optimizers.list_schedulers:Etf",
    "greedy-fusion": "loadmaster.optimizers.fusion:GreedyFusion",
    "random-fusion": "loadmaster.optimizers.fusion_search:RandomFusion",
    "anneal-fusion": "loadmaster.optimizers.fusion_search:AnnealFusion",
    "joint": "loadmaster.optimizers.joint:Joint",
    "separate": "loadmaster.optimizers.separate:Separate",
    "cpop": "loadmaster.optimizers.list_schedulers:Cpop",
    "sct": "loadmaster.optimizers.list_schedulers:Etf(favourite=yes)",
    "m-etf": "loadmaster.optimizers.list_schedulers:Etf(memory=yes)",
    "m-sct": "loadmaster.optimizers.list_schedulers:Etf(memory=yes,favourite=yes)",
    "m-heft": "loadmaster.optimizers.list_schedulers:Heft(memory=yes)",
    "metis": "loadmaster.optimizers.partition:Metis",
    "scotch": "loadmaster.optimizers.partition:Scotch",
    "kahip": "loadmaster.optimizers.partition:Kahip",
    "mtkahypar": "loadmaster.optimizers.partition:MtKahypar",
    "gp-dfs": "loadmaster.optimizers.partition:GpDfs",
    "pipeline": "loadmaster.optimizers.pipeline:PipelineSplit",
    "cp-sat": "loadmaster.optimizers.exact:CpSat",
    "local-search": "loadmaster.optimizers.descent:LocalSearch",
    "anneal": "loadmaster.optimizers.descent:Anneal",
    "brkga": "loadmaster.optimizers.genetic:Brkga",
    "brkga-5k": "loadmaster.optimizers.genetic:Brkga(evaluations=5000)",
    "tuned-brkga": "loadmaster.optimizers.genetic:TunedBrkga",
    "regal": "loadmaster.learn.regal2020:Regal",
    "gas": "loadmaster.learn.regal2020:Regal(network=sequence)",
    "go": "loadmaster.learn.go2020:Go",
    "go-one": "loadmaster.learn.go2020:Go(scratch=yes)",
    "placeto": "loadmaster.learn.placeto2019:Placeto",
    "hdp": "loadmaster.learn.hdp2018:Hdp",
    "rnn": "loadmaster.learn.mirhoseini2017:Rnn",
    "memory-order": "loadmaster.optimizers.memory:MemoryOrder",
    "anneal-order": "loadmaster.optimizers.memory:AnnealOrder",
    "best-of": "loadmaster.optimizers.simple:BestOf",
}

# suffix of a model file -> "module:function" that reads it
IMPORTERS: Mapping[str, str] = {
    ".json": "loadmaster.files:load_graph",
    ".json.gz": "loadmaster.files:load_graph",
    ".json.xz": "loadmaster.files:load_graph",
    ".onnx": "loadmaster.importers.onnx:load_onnx",
}


def optimizers() -> dict[str, str]:
    """Ours and those that installed packages add (entry points of the group loadmaster.optimizers)."""
    theirs = {entry.name: entry.value for entry in entry_points(group="loadmaster.optimizers")}
    return {**theirs, **OPTIMIZERS}
