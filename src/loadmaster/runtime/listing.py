"""A program as text: calls in order, turned into one function or several. The one place where text becomes code, and
none of it is anything but what `program` wrote from a step that this process captured.

Spans of lines can be taken out and made one call: that is how fused kernels (`regions`) and CUDA graphs come in.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple


@dataclass
class Line:
    """One call.

    Attributes:
        text: a call, as Python.
        uses: names that it reads.
        makes: names that it assigns.
        op: of the problem; -1: a send, or what belongs to one.
        device: of the plan, on which it runs.
        alone: it must not be recorded with others: it waits, sends, or asks Python for settings.
        kernel: lines of one fused kernel have the same number; -1: of none that can be compiled.
    """

    text: str
    uses: Sequence[str]
    makes: Sequence[str] = ()
    op: int = -1
    device: int = 0
    alone: bool = False
    kernel: int = -1


class ListingPart(NamedTuple):
    """Neighbouring lines as a function.

    Attributes:
        run: the function.
        given: names that it is called with.
        made: what later lines use.
        lines: that it is made of.
    """

    run: Callable[..., Any]
    given: Sequence[str]
    made: Sequence[str]
    lines: Sequence[Line]


@dataclass(frozen=True, eq=False)
class Listing:
    """Calls in order and what they are called with.

    `joined` replaces spans of lines by one call each, `source` writes the function, `by_line` runs it a line at a time,
    for what measures or watches a step.

    Attributes:
        lines: the calls.
        residents: names of what the function is called with.
        returned: names of what it returns.
        constants: what the text refers to: functions, attributes, updates.
    """

    lines: Sequence[Line]
    residents: Sequence[str]
    returned: Sequence[str]
    constants: Mapping[str, Any]

    def source(self) -> tuple[str, dict[int, Line]]:
        """As Python, and the line of each number."""
        head = [f"    [{', '.join(self.residents)}] = residents"] if self.residents else []
        return _text("residents", head, self.lines, {*self.residents}, self.returned)

    def joined(self, spans: Iterable[tuple[int, int]], make: Callable[[ListingPart], Any], prefix: str) -> Listing:
        """With each span of lines, in order and apart from each other, as one call of what `make` makes of it."""
        last = self._last_uses()
        lines: list[Line] = []
        constants, done, number = dict(self.constants), 0, count()
        for start, end in spans:
            part = self._part(start, end, last)
            name = f"{prefix}{next(number)}"
            constants[name] = make(part)
            target = f"[{', '.join(part.made)}] = " if part.made else ""
            first = part.lines[0]
            text = f"{target}{name}({', '.join(part.given)})"
            lines += [*self.lines[done:start], Line(text, part.given, part.made, first.op, first.device)]
            done = end
        return Listing([*lines, *self.lines[done:]], self.residents, self.returned, constants)

    def _part(self, start: int, end: int, last: Mapping[str, int]) -> ListingPart:
        lines = self.lines[start:end]
        inside = dict.fromkeys(name for line in lines for name in line.makes)
        given = list(dict.fromkeys(name for line in lines for name in line.uses if name not in inside))
        made = [name for name in inside if last[name] >= end]
        text, _ = _text(", ".join(given), [], lines, set(), made)
        return ListingPart(compiled_text(text, self.constants), given, made, lines)

    def _last_uses(self) -> dict[str, int]:
        """The last line that uses each name; of names that are returned, one past the end."""
        last = {name: index for index, line in enumerate(self.lines) for name in (*line.uses, *line.makes)}
        return {**last, **dict.fromkeys(self.returned, len(self.lines))}

    def by_line(self, residents: Sequence[Any]) -> Iterator[tuple[Line, Callable[[], Mapping[str, Any]]]]:
        """Each line, and what runs it and gives back the names there are then, to be called before the next."""
        names = {**self.constants, **dict(zip(self.residents, residents, strict=True))}
        lasting, last = {*self.residents, *self.returned}, self._last_uses()
        for at, line in enumerate(self.lines):

            def run(line: Line = line) -> Mapping[str, Any]:
                exec(line.text, names)
                return names

            yield line, run
            for name in {*line.uses, *line.makes} - lasting:
                if last[name] == at:
                    del names[name]


def _text(
    given: str, head: Sequence[str], lines: Sequence[Line], lasting: set[str], returned: Sequence[str]
) -> tuple[str, dict[int, Line]]:
    """The source, with each name deleted after its last use, and the line of each number."""
    lasting = {*lasting, *returned}
    last = {name: index for index, line in enumerate(lines) for name in (*line.uses, *line.makes)}
    dying: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in lasting:
            dying.setdefault(index, []).append(name)
    text = [f"def step({given}):", *head]
    numbered = {}
    for index, line in enumerate(lines):
        text.append(f"    {line.text}")
        numbered[len(text)] = line
        if index in dying:
            text.append(f"    del {', '.join(dying[index])}")
    text.append(f"    return [{', '.join(returned)}]")
    return "\n".join(text) + "\n", numbered


_FILES = count()


def compiled_text(source: str, constants: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that the text defines, over its constants; tracebacks show its lines."""
    filename = f"<loadmaster step {next(_FILES)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    names = dict(constants)
    exec(compile(source, filename, "exec"), names)
    run: Callable[..., Any] = names["step"]
    return run
