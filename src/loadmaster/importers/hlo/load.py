"""Files that hold an XLA program, and jax functions.

HLO text, StableHLO text and serialized protos are told apart by what is in them; a jax function is lowered and compiled
for this machine, and read from the text of that.
"""

from __future__ import annotations

from typing import Any

from loadmaster.errors import ImportFailed, MissingExtra, UnreadableFile
from loadmaster.files.text import PathLike
from loadmaster.graph import Graph
from loadmaster.importers.hlo.graph import KEEP, graph_of
from loadmaster.importers.hlo.module import HloModule
from loadmaster.importers.hlo.proto import parse_hlo_proto
from loadmaster.importers.hlo.stablehlo import parse_stablehlo
from loadmaster.importers.hlo.text import parse_hlo
from loadmaster.importers.reading import read_bytes, stem_of, uncollected


def load_hlo(path: PathLike, *, fusions: str = KEEP, trips: int | None = None, name: str = "") -> Graph:
    """The graph of a file of HLO text, of StableHLO text or of a serialized HLO proto; its content decides which."""
    raw, label = read_bytes(path), name or stem_of(path)
    with uncollected():
        try:
            return graph_of(parse(raw, str(path)), label, fusions=fusions, trips=trips)
        except RecursionError:
            raise UnreadableFile("it is nested too deeply", str(path), "is it an XLA program?") from None


def parse(raw: bytes, where: str) -> HloModule:
    """An XLA program in any of its three forms: protocol buffer, HLO text or StableHLO."""
    if b"\0" in raw[:4096] or not is_text(raw[:4096]):
        return parse_hlo_proto(raw, where)
    try:
        text = raw.decode()
    except UnicodeError:
        raise UnreadableFile("its text is not valid UTF-8", where, "is the file damaged?") from None
    return parse_stablehlo(text, where) if "func.func" in text else parse_hlo(text, where)


def is_text(raw: bytes) -> bool:
    """Whether the bytes have no control characters but tabs and ends of lines."""
    return all(byte >= 32 or byte in b"\t\n\r" for byte in raw)


def load_jax(function: Any, inputs: Any, *, name: str = "", fusions: str = KEEP) -> Graph:
    """The graph of a jax function on example inputs, a tuple of positional ones or a dict of named ones, as XLA
    compiles it here."""
    try:
        import jax  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise MissingExtra.of("jax", "jax", "compiling a jax function") from None
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    label = name or getattr(function, "__name__", "jax")
    try:
        lower = getattr(function, "lower", None) or jax.jit(function).lower
        text = lower(*args, **kwargs).compile().as_text()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"{label} could not be compiled: {reason}"
        raise ImportFailed(what, label, "check that it runs on these inputs") from error
    return graph_of(parse_hlo(text, label), label, fusions=fusions)
