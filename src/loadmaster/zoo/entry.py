"""One model of the zoo: what it is, how big, and where it was published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.zoo.pieces import Model


@dataclass(frozen=True)
class ZooEntry:
    """A model at one size.

    Attributes:
        build: "file:function" inside loadmaster.zoo.
        settings: keyword arguments of the builder.
        note: sizes, in words.
        source: paper and arXiv number.
        devices: how many GO (arXiv 2010.12438, table 1) planned it for; 0: not one of its workloads.
    """

    name: str
    build: str
    settings: Mapping[str, Any] = field(hash=False)
    note: str
    source: str
    devices: int = 0
    optimizer: str = "adam"

    def model(self, training: bool) -> "Model":
        """The module and its example inputs; inside a fake mode they take no memory. Imports torch."""
        file, function = self.build.split(":")
        built: Model = getattr(import_module(f"loadmaster.zoo.{file}"), function)(training, **self.settings)
        return built
