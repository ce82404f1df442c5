"""Requests: what a server is asked for, and how it is judged: by the time of a request, of a first token, of a token,
or by how many are answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadmaster.errors import InvalidSetting, UnknownName

Goal = Literal["latency", "first-token", "per-token", "throughput"]
GOALS = ("latency", "first-token", "per-token", "throughput")


@dataclass(frozen=True)
class Requests:
    """Batches of prompts that are answered together.

    `prompt` tokens go in, `new` tokens come out, for each of `batch` sequences; `flight` such batches are under way at
    once, each at another stage of the model, which matters for throughput alone.
    """

    prompt: int = 512
    new: int = 128
    batch: int = 1
    flight: int = 1

    def __post_init__(self) -> None:
        for name in ("prompt", "new", "batch", "flight"):
            if not 1 <= getattr(self, name) <= 2**24:
                what = f"{name} is {getattr(self, name)}"
                raise InvalidSetting(what, "--serve", "give whole numbers of at least 1")

    @staticmethod
    def of(text: str) -> Requests:
        """Of "prompt=2048,new=256,batch=4"; k stands for 1,024.

        >>> Requests.of("prompt=2k,new=256")
        Requests(prompt=2048, new=256, batch=1, flight=1)
        """
        given: dict[str, int] = {}
        for item in filter(None, text.split(",")):
            name, _, value = (part.strip() for part in item.partition("="))
            if name not in Requests.__dataclass_fields__:
                raise UnknownName.among("setting of --serve", name, list(Requests.__dataclass_fields__), text)
            given[name] = tokens(value, item)
        return Requests(**given)

    def __str__(self) -> str:
        return f"prompt={self.prompt},new={self.new},batch={self.batch},flight={self.flight}"


def tokens(text: str, where: str) -> int:
    """A count of tokens as people write it: 2048 or 2k."""
    number, factor = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
    if not number.isdecimal() or len(number) > 8:
        raise InvalidSetting(f"'{text}' is no count", where, "give a whole number such as 2048 or 2k")
    return int(number) * factor
