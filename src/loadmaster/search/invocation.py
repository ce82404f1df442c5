"""Invocation: what was asked for, in words that can be typed again.

It travels with a Result and lies in plan files, so that advice can repeat a run with one thing changed and keep all
else: limits, costs, seed. A result of `solve` alone has none, and then no command is printed for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Options = tuple[tuple[str, str], ...]
# Options that say what is written and how it is shown: no part of what is planned.
WRITTEN = frozenset(["--save", "--report", "--trace", "--schedule", "--plot", "--json", "--debug"])


@dataclass(frozen=True)
class Invocation:
    """A run of `loadmaster plan`.

    >>> asked = Invocation("zoo:gnmt-4", (("--on", "4xp100-pcie"), ("--memory-limit", "8 GiB")))
    >>> asked.command({"--split": "auto", "--memory-limit": None})
    'loadmaster plan zoo:gnmt-4 --on 4xp100-pcie --split auto'
    >>> asked["--memory-limit"], asked["--seed"]
    ('8 GiB', None)

    Attributes:
        model: as typed.
        options: name and value of each that was given, files to write left out; "" for one without a value.
    """

    model: str
    options: Options = ()

    def __getitem__(self, option: str) -> str | None:
        return dict(self.options).get(option)

    def with_options(self, changes: Mapping[str, str | None]) -> Invocation:
        """With these options set; None takes one away."""
        merged = {**dict(self.options), **changes}
        return Invocation(self.model, tuple((name, value) for name, value in merged.items() if value is not None))

    def command(self, changes: Mapping[str, str | None] | None = None) -> str:
        """The line to type, with these options changed."""
        options = self.with_options(changes or {}).options
        words = [word for name, value in options for word in (name, value) if word]
        return shlex.join(["loadmaster", "plan", self.model, *words])

    def to_json(self) -> dict[str, Any]:
        """As it lies in plan files."""
        return {"model": self.model, "options": dict(self.options)}

    @staticmethod
    def from_json(data: Any) -> Invocation | None:
        """None where a file says nothing of it, or nothing that could have been typed."""
        options = data.get("options") if isinstance(data, dict) else None
        if not isinstance(options, dict) or not isinstance(data.get("model"), str):
            return None
        words = [word for pair in options.items() for word in pair]
        if not all(isinstance(word, str) and word.isprintable() for word in [data["model"], *words]):
            return None
        if not all(name.startswith("--") and name not in WRITTEN for name in options):
            return None
        return Invocation(data["model"], tuple(options.items()))
