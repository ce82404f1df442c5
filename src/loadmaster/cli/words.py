"""What the words on the command line mean: models, clusters, methods, sizes, budgets.

A word that means nothing raises an error with the nearest ones that do; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.main import get_current_context  # type: ignore[attr-defined]

from loadmaster.catalog import is_callable
from loadmaster.catalog.specs import DEFAULT, fitting, fused, make_method, split_list, with_settings
from loadmaster.errors import InvalidSetting, MissingExtra, UnwritableFile

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster
    from loadmaster.cost import CostModel
    from loadmaster.graph import Graph
    from loadmaster.problem import Problem
    from loadmaster.search import Budget, Invocation

__all__ = ["DEFAULT", "fitting", "fused", "is_callable"]  # as verbs ask for them

DEFAULT_SECONDS = 10.0  # what one waits for a first answer


def is_read(model: str, target: str | None) -> bool:
    """Whether `plan` answers from the sizes in the model's files, in llama.cpp's words."""
    path = model.removeprefix("hf:")
    folder = target in (None, "llama.cpp") and any(Path(path).glob("*.safetensors"))
    return path.endswith(".gguf") or folder


def is_served(model: str) -> bool:
    """Whether it is a language model by its name on Hugging Face, "hf:NAME", which is planned for requests."""
    return model.startswith("hf:")


def split_specs(text: str) -> list[str]:
    """Specs joined with commas. 'anneal:chains=3,start=heft,etf' is two: a setting belongs to the spec before it."""
    specs: list[str] = []
    for part in split_list(text):
        head = part.partition("=")[0]
        if "=" in part and ":" not in head and specs:
            specs[-1] += f",{part}"
        else:
            specs.append(part.strip())
    return list(dict.fromkeys(specs))


def whole(spec: str, granularity: str, stages: bool = False) -> str:
    """The method on whole modules."""
    return f"whole-modules:granularity={granularity},inner=[{spec}]{',stages=yes' if stages else ''}"


def budget_of(seconds: float | None, simulations: int | None) -> Budget:
    """From `--seconds` and `--simulations`; with neither, ten seconds."""
    from loadmaster.search import Budget

    if seconds is None and simulations is None:
        seconds = DEFAULT_SECONDS
    return Budget(seconds, simulations)


def size_of(text: str | None) -> int | None:
    """Bytes of `--memory-limit`."""
    from loadmaster.cluster.cluster import parse_size

    return None if text is None else parse_size(text, "--memory-limit")


def check_settings(specs: list[str], memory_limit: str | None, save: Path | None) -> int | None:
    """Finds mistakes before any work is done; returns the memory limit in bytes."""
    if not specs:
        raise InvalidSetting(
            "no method was named", "--method", "give one or more names from 'loadmaster tools list methods'"
        )
    for spec in specs:
        make_method(spec)
    if save is not None:
        check_writable(save)
    return None if memory_limit is None else size_of(memory_limit)


def check_writable(path: Path) -> None:
    """UnwritableFile where a file could not be written there: found out before the search, not after it."""
    folder = Path(os.path.realpath(path)).parent
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        from loadmaster.files.writing import unwritable  # with numpy behind it, for which help does not wait

        raise unwritable(path, error) from None
    if path.is_dir():
        raise UnwritableFile(f"'{path}' is a folder", "", "give the name of a file")
    if not folder.is_dir():
        raise UnwritableFile(
            f"there is no folder '{folder}' to write '{path.name}' in", "", "make it first, or write elsewhere"
        )
    if not os.access(path if path.exists() and not path.is_file() else folder, os.W_OK):
        raise UnwritableFile(f"'{path}' cannot be written", "", "check its permissions, or write elsewhere")


def capture_settings(
    model: str, training: bool | None, optimizer: str | None, dtype: str | None, batch: int | None
) -> dict[str, Any]:
    """How to capture the model, as `load` takes it; what a model has no use for is refused."""
    given = {"training": training, "optimizer": optimizer, "dtype": dtype, "batch": batch}
    wanted = {key: value for key, value in given.items() if value is not None}
    from_zoo = model.startswith("zoo:") and not wanted.keys() - {"training"}
    if wanted and not from_zoo and not is_callable(model):
        option = {"training": "--train or --infer"}.get(min(wanted), f"--{min(wanted)}")
        what = f"{option} is for a torch model that is captured now, not for '{model}'"
        raise InvalidSetting(what, option, "give package.module:callable, or leave it out")
    if training is False and optimizer is not None:
        raise InvalidSetting("an inference updates nothing", "--optimizer", "leave it out, or plan with --train")
    return wanted


def problem_of(
    model: str,
    on: str | None,
    objective: str,
    memory_limit: int | None,
    costs: str | None = None,
    how: Mapping[str, Any] | None = None,
    mode: str | None = None,
    assume: bool = True,
) -> tuple[Problem, str]:
    """The priced problem, and why that cluster when nobody asked for it. What makes a plan refuses a model that is
    mostly assumed, unless it was told to accept it; what looks at one does not."""
    from loadmaster.cluster.presets import THIS_MACHINE
    from loadmaster.cost import price
    from loadmaster.importers import load

    cluster, choice = cluster_of(on or THIS_MACHINE), ""
    graph = load(model, **{"gpu": cluster.has_gpu, "assume": assume, **(how or {})})
    if on is None:
        from loadmaster.planning import default_cluster

        cluster, reason = default_cluster(model, graph)
        choice = f" ({reason}, --on 2xa100-nvlink plans for another)"
    if costs == "learned":
        from loadmaster.cost import hosted

        cluster = hosted(cluster, mode)
    elif mode is not None:
        cluster = in_mode(cluster, mode)
    cost = None if costs is None else costs_of(costs, graph, cluster)
    return price(graph, cluster, objective=objective, memory_limit=memory_limit, cost=cost), choice


def cluster_of(name: str) -> Cluster:
    """A preset, a cluster file, or "here": this machine, measured."""
    from loadmaster.cluster import Cluster

    if name == "here":
        check_needed("torch", "torch", "measuring this machine")
        from loadmaster.runtime.measure import here

        return here(say=lambda text: print(text, file=sys.stderr))
    return Cluster.of(name)


def in_mode(cluster: Cluster, mode: str) -> Cluster:
    """The cluster in that mode of execution; one that knows nothing of it is refused."""
    mode = mode.removeprefix("cuda-")
    if mode not in cluster.dispatch_ns:
        what = f"'{cluster.name}' does not say what '{mode}' takes its host"
        raise InvalidSetting(what, "--mode", "plan on 'here', or give a cluster file with dispatch_ns for it")
    return cluster.with_mode(mode)


def costs_of(text: str, graph: Graph, cluster: Cluster) -> CostModel:
    """What --costs names: "roofline", "learned", "here" (measured on this machine), or a file of costs or a trace."""
    if text == "roofline":
        from loadmaster.cost import Roofline

        return Roofline()
    if text == "learned":
        from loadmaster.cost import Learned

        return Learned()
    if text == "here":
        check_needed("torch", "torch", "measuring this machine")
        from loadmaster.runtime.measure import measure_ops

        return measure_ops(graph, cluster, say=lambda text: print(text, file=sys.stderr))
    from loadmaster.files.costs import costs_from_json
    from loadmaster.files.profile import costs_from_profile, is_profile
    from loadmaster.files.text import read_json

    data = read_json(text)
    if is_profile(data):
        return costs_from_profile(data, graph, cluster.devices[0].kind, text)
    return costs_from_json(data, text)


def module_of(model: str) -> tuple[Any, Any]:
    """The module and the inputs that package.module:callable returns, with real tensors."""
    from loadmaster.importers import build_module

    return build_module(model)


def check_needed(module: str, extra: str, doing: str) -> None:
    """MissingExtra where a package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise MissingExtra.of(module, extra, doing)


def on_ray(spec: str, address: str) -> str:
    """The method as islands on a Ray cluster."""
    if spec.partition(":")[0] == "islands":
        return with_settings(spec, f"ray={address}")
    return f"islands:inner=[{spec}],ray={address}"


# What was typed, as an `Invocation` that a result carries: every option that was given, but for files to write


def invocation(model: str, problem: Problem, budget: Budget, method: str | None = None) -> Invocation:
    """Of the verb that runs; the cluster and the seconds are said, also where they are defaults. `method`: of one row
    of a comparison."""
    from loadmaster.search import Invocation

    given: dict[str, str | None] = {"--on": problem.cluster.name}
    if budget.seconds is not None:
        given["--seconds"] = f"{budget.seconds:g}"
    given |= _typed() | ({} if method is None else {"--method": method})
    return Invocation(model).with_options(given)


def _typed() -> dict[str, str]:
    from loadmaster.search.invocation import WRITTEN

    context, found = get_current_context(), dict[str, str]()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        value = context.params.get(name)
        if source is None or source.name != "COMMANDLINE" or not parameter.opts[0].startswith("--"):
            continue
        if parameter.opts[0] in WRITTEN or value is None:
            continue
        found |= _as_typed(parameter, value)
    return found


def _as_typed(parameter: Any, value: Any) -> dict[str, str]:
    if isinstance(value, bool):
        return {(parameter.opts if value else parameter.secondary_opts)[0]: ""}
    return {parameter.opts[0]: f"{value:g}" if isinstance(value, float) else str(value)}
