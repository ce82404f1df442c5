"""One model of the zoo: what it is, how big, and where it was published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.zoo.pieces import Model


@dataclass(frozen=True)
class ZooEntry:
    """A model at one size."""

    name: str
    build: str  # "file:function" inside loadmaster.zoo
    settings: Mapping[str, Any] = field(hash=False)  # keyword arguments of the builder
    note: str  # sizes, in words
    source: str  # paper and arXiv number
    devices: int = 0  # how many GO (arXiv 2010.12438, table 1) planned it for; 0: not one of its workloads
    optimizer: str = "adam"

    def model(self, training: bool) -> "Model":
        """The module and its example inputs; inside a fake mode they take no memory. Imports torch."""
        file, function = self.build.split(":")
        built: Model = getattr(import_module(f"loadmaster.zoo.{file}"), function)(training, **self.settings)
        return built
