"""What a method works with (`Search`, `Budget`), and `solve`, which reports only what it simulated itself.

`budget` says how long and by what plans are compared, `search` is what a method is given, `solving` runs one and makes
a `Result` (`result`), with what was typed (`invocation`); `warming` compiles what a method needs before its clock runs,
and `workers` runs jobs elsewhere.
"""

from loadmaster.search.budget import WORST, Budget, Score, as_budget
from loadmaster.search.invocation import Invocation
from loadmaster.search.result import Result
from loadmaster.search.search import Method, Moment, Search, Start
from loadmaster.search.solving import solve

__all__ = [
    "WORST",
    "Budget",
    "Invocation",
    "Method",
    "Moment",
    "Result",
    "Score",
    "Search",
    "Start",
    "as_budget",
    "solve",
]
