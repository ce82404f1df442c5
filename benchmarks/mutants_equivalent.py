"""Mutants that behave as the source does, judged one by one: no test can tell them, and `mutants.py` leaves them out.

By file, function, what stands there and what the mutant makes of it; behind it the reason. What is merely hard to test
does not belong here.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
