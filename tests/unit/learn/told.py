"""A generator of random numbers that is told what to answer."""

from __future__ import annotations

from typing import Any


class Told:
    """A generator that answers each kind of question from a list; between which numbers it was asked is kept."""

    def __init__(self, integers: list[int], uniform: list[Any], random: list[float], normal: list[float]) -> None:
        self.lists = {"integers": integers, "uniform": uniform, "random": random, "normal": normal}
        self.asked = list[tuple[float, ...]]()

    def integers(self, *bounds: int) -> int:
        self.asked.append(bounds)
        return self.lists["integers"].pop(0)

    def uniform(self, *bounds: float) -> Any:
        self.asked.append(bounds)
        return self.lists["uniform"].pop(0)

    def random(self) -> float:
        return self.lists["random"].pop(0)

    def standard_normal(self) -> float:
        return self.lists["normal"].pop(0)
