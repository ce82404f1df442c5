"""A plan file, or a library of plans, that the user names as a start."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from loadmaster.errors import InvalidPlan
from loadmaster.files.plan import plan_from_json
from loadmaster.files.text import read_json
from loadmaster.files.writing import path_of
from loadmaster.methods.experience.adapting import adapt
from loadmaster.methods.experience.choosing import starts_like
from loadmaster.methods.experience.known import Known
from loadmaster.methods.experience.library import Library, is_library
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.search import Start


def starts_from(path: str | PathLike[str], problem: Problem) -> list[Start]:
    """The plan of a file, made for another model, batch or cluster, as plans for this problem; of a library, those of
    the problems most like it."""
    if is_library(path_of(path)):
        library = Library(Path(path))
        if not library.entries():
            fix = "give a library that 'loadmaster lab train plans' wrote, or the file of one plan"
            raise InvalidPlan("no plan can be read from this zip file", str(path), fix)
        return starts_like(problem, [library])
    where = str(path)
    data = read_json(path)
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith("loadmaster.plan/"):
        raise InvalidPlan("this is no plan of ops", where, "give a file that 'loadmaster plan --save' wrote")
    if data.get("known") is None:
        return [Start(_op_by_op(plan_from_json(data, where), problem, where), Path(path).name)]
    return [Start(plan, Path(path).name) for plan in adapt(Known.from_text(data["known"], where), problem)[0]]


def _op_by_op(plan: Plan, problem: Problem, where: str) -> Plan:
    """Of an older file, which does not say what its ops look like: for a graph of as many ops on as many devices."""
    fits = len(plan.device) == problem.num_ops and plan.device.max(initial=0) < problem.num_devices
    if not fits:
        what = "the file is of an older version, and its plan has another number of ops or devices"
        raise InvalidPlan(what, where, "plan that model again with this version, then give the new file")
    same = Plan.of(problem, plan.device, plan.rank)
    check(same, problem)
    return same
