"""Runs every method without compiled code and counts how often the simulator's loop is called: prints JSON,
{method: {problem: [calls, simulations that the search counted]}}.

python -m tests.promises.counting SIMULATIONS PROBLEM ...
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"  # before numba is imported: then the loop is a function like any other
os.environ["LOADMASTER_THREADS"] = "1"

from loadmaster import Budget, MissingExtra, catalog, make_method
from loadmaster.search import Search
from loadmaster.simulator import loop
from tests.problems import ALL


class Counted:
    """The loops, and how many candidates they were called for: one that was timed without memory, and not too slow, may
    be run with it at once."""

    def __init__(self) -> None:
        self.calls, self.timed = 0, False
        self.loops = {"run": (loop.run, self.run), "step_time": (loop.step_time, self.step_time)}

    def run(self, *given: Any) -> Any:
        recording = given[8]
        if recording or not self.timed:
            self.calls += 1
        self.timed = False
        return self.loops["run"][0](*given)

    def step_time(self, *given: Any) -> Any:
        self.calls += 1
        time = self.loops["step_time"][0](*given)
        self.timed = bool(time >= 0)
        return time

    def put_in(self) -> None:
        """Into every module that has the loops by now; those that are imported later take them from their own."""
        for name, module in list(sys.modules.items()):
            for word, (made, counting) in self.loops.items():
                if name.startswith("loadmaster.") and vars(module).get(word) is made:
                    setattr(module, word, counting)


def main(simulations: int, problems: list[str]) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # random numbers overflow, which compiled code says nothing about
    counted, found = Counted(), dict[str, dict[str, tuple[int, int]]]()
    counted.put_in()
    for method in sorted(catalog.methods()):
        for name in problems:
            search, before = Search(ALL[name](), Budget(None, simulations)), counted.calls
            try:
                make_method(method).optimize(search)
            except MissingExtra:
                continue
            found.setdefault(method, {})[name] = (counted.calls - before, search.simulations)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
