"""Every error a user can meet.

    LoadmasterError
    ├── InvalidGraph      a graph breaks a rule of its format
    ├── InvalidCluster    a cluster breaks a rule of its format
    ├── InvalidPlan       a plan breaks a rule, or was made for another graph or cluster
    ├── InvalidSetting    a setting of a command or a method is out of range
    ├── UnknownName       a name that no catalog has
    ├── UnreadableFile    a file is missing, truncated or not what its name says
    ├── UnwritableFile    a file could not be written: the disk is full, or it is not permitted
    ├── ImportFailed      a model could not be turned into a graph
    ├── MissingExtra      an optional package is not installed
    ├── CannotRun         a plan could not be run on these devices, or does not compute what the model does
    └── DoesNotFit        no plan was found within the memory of the devices

Each has three parts: what is wrong, in the user's own names; where; what to do next. The command line prints them and
ends with the error's `exit_code`; code can catch LoadmasterError and read the parts.

>>> error = UnknownName.among("method", "anneall", ["anneal", "heft"])
>>> print(error)
there is no method called 'anneall'
  fix:   did you mean anneal?
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without what a terminal would obey: names come from files, and files from anywhere. Control characters,
    escape sequences and marks that turn the direction of writing are spelled out."""
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def kind_of(given: object) -> str:
    """What something that was given is, in words.

    >>> kind_of(3), kind_of(None), kind_of([])
    ('an int', 'None', 'a list')
    """
    name = type(given).__name__
    return "None" if given is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class LoadmasterError(Exception):
    """What is wrong, where, and how to fix it.

    >>> error = LoadmasterError("'16' has no unit", "--memory-limit", "write 16GiB")
    >>> error.what, error.fix, error.exit_code
    ("'16' has no unit", 'write 16GiB', 1)

    Attributes:
        what: the mistake, in the names of ops, devices and files that the user gave.
        where: the file, graph, cluster or argument; "" where `what` says it.
        fix: what to do next, often what to type.
        exit_code: of the command line: 1, and 3 for a plan that does not fit.
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return printable("\n".join(lines))


class InvalidGraph(LoadmasterError):
    """A graph breaks a rule of its format: a cycle, a tensor made twice, a size that cannot be. `GraphBuilder.build`
    and `price` raise it, with the name of the op or tensor.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("loop")
    >>> t = g.tensor(8)
    >>> op = g.op("a", "task", [t], [t], time_ns=5)
    >>> try:
    ...     g.build()
    ... except lm.InvalidGraph as error:
    ...     print(error.what)
    ops wait for each other: 'a' <- 'a'
    """


class InvalidCluster(LoadmasterError):
    """A cluster breaks a rule of its format: a pair without a link, a rate that is not positive; or it lacks what an
    objective asks for.

    >>> import loadmaster as lm
    >>> try:
    ...     lm.Cluster.preset("100xk80")
    ... except lm.InvalidCluster as error:
    ...     print(error.what)
    '100xk80' has more than 64 devices
    """


class InvalidPlan(LoadmasterError):
    """A plan breaks a rule, or was made for another graph or cluster: `check` raises it with the first rule that is
    broken.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("one")
    >>> op = g.op("a", "task", [], [], time_ns=5)
    >>> problem = lm.price(g.build(), "2xk80")
    >>> try:
    ...     lm.check(lm.Plan.of(problem, [7]), problem)
    ... except lm.InvalidPlan as error:
    ...     print(error.what)
    op 'a' is placed on device 7
    """


class InvalidSetting(LoadmasterError):
    """A setting of a command, a method or a call is out of range or of the wrong kind.

    >>> import loadmaster as lm
    >>> try:
    ...     lm.price(lm.load("zoo:rnnlm-2"), "2xk80", memory_limit="16")
    ... except lm.InvalidSetting as error:
    ...     print(error.fix)
    write 16GiB, 16MiB or 16B (bytes)
    """

    @classmethod
    def instead_of(cls, wanted: str, given: object, where: str, fix: str) -> InvalidSetting:
        """The error for something else than what a call takes.

        >>> print(InvalidSetting.instead_of("plan", 3, "simulate", "give a Plan"))
        an int is no plan
          where: simulate
          fix:   give a Plan
        """
        return cls(f"{kind_of(given)} is no {wanted}", where, fix)


class UnknownName(LoadmasterError):
    """A name that no catalog has.

    >>> import loadmaster as lm
    >>> try:
    ...     lm.make_method("hefd")
    ... except lm.UnknownName as error:
    ...     print(error.fix)
    did you mean heft or m-heft?
    """

    @classmethod
    def among(cls, kind: str, name: str, choices: Iterable[str], where: str = "") -> UnknownName:
        """The error for a name that is not one of the choices, with the nearest ones, or else all."""
        known = sorted(choices)
        near = difflib.get_close_matches(name, known, n=3)
        fix = f"did you mean {' or '.join(near)}?" if near else f"choices: {', '.join(known)}"
        return cls(f"there is no {kind} called '{name}'", where, fix)


class UnreadableFile(LoadmasterError):
    """A file is missing, truncated or not what its name says.

    >>> import loadmaster as lm
    >>> try:
    ...     lm.load("missing-model.onnx")
    ... except lm.UnreadableFile as error:
    ...     print(error.what)
    there is no file 'missing-model.onnx'
    """


class UnwritableFile(LoadmasterError):
    """A file could not be written: the disk is full, or it is not permitted.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("one")
    >>> op = g.op("a", "task", [], [], time_ns=5)
    >>> problem = lm.price(g.build(), "2xk80")
    >>> plan = lm.Plan.of(problem, [0])
    >>> try:
    ...     lm.save_plan(plan, problem, "no-such-folder/plan.json")
    ... except lm.UnwritableFile as error:
    ...     print(error.what)
    'no-such-folder/plan.json' cannot be written: No such file or directory
    """


class ImportFailed(LoadmasterError):
    """A model could not be turned into a graph.

    >>> import loadmaster as lm
    >>> try:
    ...     lm.load("weights.pt")
    ... except lm.ImportFailed as error:
    ...     print(error.what)
    'weights.pt' cannot be loaded as it is
    """


class MissingExtra(LoadmasterError):
    """An optional package is not installed; the fix is the command that installs it. Planning a JSON or ONNX graph
    needs none.

    >>> print(MissingExtra.of("onnx", "onnx", "reading a model").fix)
    pip install 'loadmaster[onnx]'
    """

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtra:
        command = f"pip install 'loadmaster[{extra}]'"
        return cls(f"{purpose} needs the package '{package}', which is not installed", "", command)


class CannotRun(LoadmasterError):
    """A plan could not be run on these devices, or does not compute what the model does: an op failed or has no kernel
    there, another process does not answer, or results differ.

    >>> error = CannotRun("'cuda:7' is not there", "devices", "name a device of this machine")
    >>> print(error)
    'cuda:7' is not there
      where: devices
      fix:   name a device of this machine
    """


class DoesNotFit(LoadmasterError):
    """No plan was found within the memory of the devices. `solve` returns such plans with `fits` False; saving one, or
    asking the command line for one, raises this, and so does a run that is out of memory.

    >>> DoesNotFit("the plan of 'gpt2' does not fit").exit_code
    3
    """

    exit_code = 3
