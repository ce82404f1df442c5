"""plan: from a model to a checked plan in one call.

Load, price, search, and make it fit, with defaults that a first user need not know: this machine, the method "auto",
ten seconds. Each step is a function of its own (`load`, `price`, `solve`,
`fitted`) for those who want to hold what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

from loadmaster.catalog import methods
from loadmaster.cluster import Cluster
from loadmaster.cluster.machine import this_machine
from loadmaster.cost import CostModel, price
from loadmaster.errors import InvalidSetting
from loadmaster.graph import Graph
from loadmaster.importers import load
from loadmaster.problem import Problem
from loadmaster.problem.objective import Objective
from loadmaster.search import Budget, Invocation, Method, Result, Search, Start, as_budget, solve


def plan(
    model: Any,
    *,
    on: Cluster | str | PathLike[str] | None = None,
    inputs: Any = None,
    budget: Budget | float | None = None,
    method: Method | str = "auto",
    fusion: Literal["auto", "none"] = "auto",
    objective: Objective | str = "step-time",
    memory_limit: int | str | None = None,
    seed: int = 0,
    training: bool = True,
    optimizer: str = "adam",
    dims: Mapping[str, int] | None = None,
    cost: CostModel | None = None,
    like: str | PathLike[str] | None = None,
    recompute: bool = True,
    offload: bool = True,
    assume: bool = False,
    listener: Callable[[Search], None] | None = None,
) -> Result:
    """Loads a model, prices it on a cluster and searches for a plan.

    >>> import loadmaster as lm
    >>> result = lm.plan("zoo:gnmt-4", on="4xp100-pcie", budget=10)  # doctest: +SKIP
    >>> result.save("plan.json")  # doctest: +SKIP

    A graph of one's own, and a budget that gives the same answer everywhere:

    >>> g = lm.GraphBuilder("four")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(4)]
    >>> found = lm.plan(g.build(), on="2xp100-pcie", method="heft", budget=lm.Budget(None, 1))
    >>> found.value, found.fits, found.plan.device.tolist()
    (200, True, [0, 1, 0, 1])

    Args:
        model: what `load` takes: a torch module, an .onnx or .json file, "zoo:NAME", "package.module:callable", a
            Graph.
        on: a preset, a cluster file or a Cluster; by default this machine, by data sheet.
        inputs: examples for a torch module.
        budget: seconds, or a Budget; ten seconds by default.
        method: a name with settings, or an object with `optimize(search)`.
        fusion: "none" keeps the default method from fusing ops into kernels.
        objective: what is to be small: "step-time", "peak-memory", "throughput", "energy".
        memory_limit: of each device, bytes or a text such as "16GiB".
        seed: of all random choices.
        training: a step with its backward pass and updates, or an inference.
        optimizer: updates the weights in the planned step of a torch module.
        dims: open dimensions of an ONNX model, by name.
        cost: the cost model; the roofline by default.
        like: a plan file of a similar model or cluster to begin from.
        assume: accept a model of which over a tenth is assumed (see `load`).
        recompute, offload: what may be done to make a plan fit (see `fitted`).
        listener: called with the Search every tenth of a second.

    Raises:
        LoadmasterError: whatever `load`, `price` and `solve` raise, and InvalidSetting for a `fusion` that is neither
            "auto" nor "none". A plan that does not fit is returned: look at `fits`.
    """
    limit = as_budget(budget)
    _refuse_search(optimizer)
    named = None if on is None else Cluster.of(on)
    gpu = (named or this_machine()).has_gpu
    graph = load(model, training=training, inputs=inputs, optimizer=optimizer, dims=dims, gpu=gpu, assume=assume)
    cluster = named or default_cluster(model, graph)[0]
    problem = price(graph, cluster, objective=objective, memory_limit=memory_limit, cost=cost)
    starts = [] if like is None else _starts_like(like, problem)
    chosen = _told(method, fusion, recompute, offload)
    found = solve(problem, chosen, limit, seed, listener=listener, starts=starts)
    found = fitted(found, limit, seed, recompute=recompute, offload=offload, listener=listener)
    if inputs is not None or dims is not None or cost is not None or not isinstance(optimizer, str):
        return found
    typed = {"--fusion": "" if fusion == "auto" else fusion, "--like": "" if like is None else str(like)}
    typed |= {"--recompute": "" if recompute else "none", "--offload": "" if offload else "none"}
    typed |= {"--objective": "" if problem.objective.of_step else problem.objective.name}
    typed |= {"--memory-limit": "" if memory_limit is None else _typed_size(memory_limit)}
    typed |= {"--optimizer": "" if optimizer == "adam" else optimizer, "--seed": str(seed) if seed else ""}
    typed |= {"--assume": "yes"} if assume else {}
    return replace(found, asked=_asked(model, on, cluster, method, limit, training, typed))


def _starts_like(like: str | PathLike[str], problem: Problem) -> list[Start]:
    from loadmaster.methods.experience import starts_from  # only where a file is named

    return starts_from(like, problem)


def _asked(
    model: Any, on: Any, cluster: Cluster, method: Any, budget: Budget, training: bool, typed: Mapping[str, str]
) -> Invocation | None:
    """What the call would be on the command line; None where it cannot be typed there."""
    if not isinstance(model, str) or not isinstance(method, str) or isinstance(on, Cluster):
        return None
    said = {"--on": str(on or cluster.name), "--method": "" if method == "auto" else method, **typed}
    said |= {"--seconds": f"{budget.seconds:g}" if budget.seconds is not None else ""}
    said |= {"--simulations": "" if budget.simulations is None else str(budget.simulations)}
    given = {name: value for name, value in said.items() if value}
    return Invocation(model, tuple((given if training else {**given, "--infer": ""}).items()))


def _typed_size(memory_limit: int | str) -> str:
    return memory_limit if isinstance(memory_limit, str) else f"{memory_limit}B"


def _refuse_search(optimizer: object) -> None:
    """A search is `method=`; `optimizer=` is what updates the weights."""
    spec = isinstance(optimizer, str) and optimizer.partition(":")[0] in methods()
    if spec or isinstance(optimizer, Method):
        given = repr(optimizer) if spec else type(optimizer).__name__
        what = f"{given} is a method, and optimizer= is what updates the weights"
        raise InvalidSetting(what, "plan", f"give method={given}" if spec else "give it as method=")


def _told(method: Method | str, fusion: str, recompute: bool, offload: bool) -> Method | str:
    """The method; the default one with what was said of fusion and of making a plan fit."""
    if fusion not in ("auto", "none"):
        raise InvalidSetting(f"{fusion!r} is no way to fuse", "fusion", "give 'auto' or 'none'")
    said = {"fusion=none": fusion == "none", "recompute=no": not recompute, "offload=no": not offload}
    settings = ",".join(word for word, wanted in said.items() if wanted)
    return f"auto:{settings}" if method == "auto" and settings else method


def fitted(
    found: Result,
    budget: Budget | float | None = None,
    seed: int = 0,
    *,
    recompute: bool = True,
    offload: bool = True,
    least: bool = False,
    listener: Callable[[Search], None] | None = None,
) -> Result:
    """The result itself where it fits; else one in which tensors are made again (`recompute`) or wait on a host
    (`offload`), if that is better.

    A search of its own, by `recompute` from the plan that was found, with a budget as large as the first. What it
    returns counts the simulations and seconds of both.

    Args:
        found: what `solve` returned.
        budget, seed, listener: as in `solve`.
        recompute: ops may run again.
        offload: tensors may wait on a host, where the cluster has one.
        least: also where it fits, for an objective of memory.
    """
    wanted = not found.fits or (least and found.problem.objective.of_memory)
    if not wanted or not (recompute or offload) or found.plan.added is not None or found.interrupted:
        return found
    from loadmaster.baselines.simple import Ready
    from loadmaster.methods.memory.recompute import Recompute

    method = Recompute(Ready(found.plan), again=recompute, offload=offload)
    better = solve(found.problem, method, budget, seed, listener=listener)
    if not better.score < found.score:
        return found
    return replace(
        better,
        method=f"recompute:inner={found.method}",
        started_from=found.started_from,
        simulations=found.simulations + better.simulations,
        seconds=found.seconds + better.seconds,
    )


def default_cluster(model: Any, graph: Graph | None = None) -> tuple[Cluster, str]:
    """(cluster, why it): the devices that a graph's own times are for, else this machine by its data sheets."""
    if isinstance(model, str) and model.startswith("msr:"):
        from loadmaster.importers.benchmarks.msr import msr_cluster

        return msr_cluster(model.removeprefix("msr:")), "the devices of the file"
    if graph is not None and graph.time_ns.shape[1] > 1:
        return Cluster.preset(f"{graph.time_ns.shape[1]}xa100-nvlink"), "one device for each of its times"
    return this_machine(), "by data sheet; --on here measures it"
