"""HLO text, as `compiled.as_text()` and XLA's dumps have it. One instruction a line, computations before their use.

Read line by line without XLA; attributes that decide no cost are passed over.
"""

from __future__ import annotations

import re
from functools import lru_cache

from loadmaster.errors import UnreadableFile
from loadmaster.importers.hlo.module import AxisWindow, Computation, HloModule, Instruction, Shape, is_dtype

_HEAD = re.compile(r"\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?:\{[^}]*\})?")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*->.*)?\{\s*$")
_COMMENT = re.compile(r"/\*.*?\*/")
_CALLED = re.compile(r"(?:calls|to_apply|condition|body|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_MANY = re.compile(r"(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
_SCOPE = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d{1,9})")
_SOURCE = re.compile(r'source_file="([^"]*)"(?:\s+source_line=(\d{1,9}))?')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d{1,15})"\}')
_AFTER = re.compile(r"control-predecessors=\{([^}]*)\}")
_ALIAS = re.compile(r"\{([\d,\s]*)\}:\s*\((\d{1,9}),")
_NAME = re.compile(r"[\w.\-]+")
_NUMBER = re.compile(r"-?\d{1,18}")
_FACTS = {
    "dot": re.compile(r"lhs_contracting_dims=\{([\d,]*)\}"),
    "window": re.compile(r"window=\{([^}]*)\}"),
    "labels": re.compile(r"dim_labels=([\w?]+->[\w?]+)"),
    "groups": re.compile(r"batch_group_count=(\d{1,9})"),
    "index": re.compile(r"index=(\d{1,9})"),
    "direction": re.compile(r"direction=(\w+)"),
}
_WINDOWED = ("convolution", "reduce-window", "select-and-scatter")


def parse_hlo(text: str, where: str) -> HloModule:
    """A module from XLA's own text, as `compiled.as_text()` prints it."""
    lines = text.splitlines()
    head = next((line for line in lines if line.startswith("HloModule")), None)
    if head is None:
        raise UnreadableFile("it has no line that starts with HloModule", where, "give HLO text, as XLA writes it")
    sources = _sources(lines)
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for number, line in enumerate(lines, 1):
        if current is not None:
            if line.startswith("}") or line.strip() == "}":
                current = None
            elif line.strip():
                _add(current, line, f"{where}, line {number}", sources)
        elif line.rstrip().endswith("{") and (match := _COMPUTATION.match(line.strip())):
            current = computations[match[2]] = Computation(match[2])
            entry = match[2] if match[1] else entry
    _close(computations, where)
    if not entry:
        raise UnreadableFile("it has no ENTRY computation", where, "is the file cut short?")
    name = head.removeprefix("HloModule").strip().partition(",")[0].partition(" ")[0]
    return HloModule(name or "hlo", computations, entry, _aliases(head))


def _close(computations: dict[str, Computation], where: str) -> None:
    for computation in computations.values():
        if not computation.instructions:
            raise UnreadableFile(f"computation '{computation.name}' is empty", where, "is the file cut short?")
        computation.root = computation.root or computation.instructions[-1].name


def _add(computation: Computation, line: str, where: str, sources: dict[str, str]) -> None:
    if "/*" in line:
        line = _COMMENT.sub("", line)
    head = _HEAD.match(line)
    if head is None:
        raise _broken("is no instruction", line, where)
    shape, place = _shape_at(line, head.end(), where)
    opcode = _OPCODE.match(line, place)
    if opcode is None:
        raise _broken("has no opcode", line, where)
    end = _closing(line, opcode.end() - 1, where)
    instruction = _instruction(head[2], opcode[1], shape, line[opcode.end() : end], line[end + 1 :], where)
    instruction.source = instruction.source or sources.get(_found(_FRAME, line[end + 1 :]), "")
    computation.instructions.append(instruction)
    if head[1]:
        computation.root = head[2]


def _instruction(name: str, opcode: str, shape: Shape, inside: str, rest: str, where: str) -> Instruction:
    made = Instruction(name, opcode, shape, ())
    if opcode in ("parameter", "constant"):
        value = inside.strip()
        made.value = int(value) if opcode == "constant" and _NUMBER.fullmatch(value) else None
        if opcode == "parameter":
            if not value.isdecimal() or len(value) > 9:
                raise _broken("is a parameter without a number", name, where)
            made.number = int(value)
    else:
        made.operands = _operands(inside)
    if rest:
        _read_attributes(made, rest)
    return made


def _read_attributes(made: Instruction, rest: str) -> None:
    if "=" in rest and ("call" in rest or "to_apply" in rest or "body=" in rest or "computation" in rest):
        made.called = _called(rest)
    if "op_name=" in rest:
        made.scope = _found(_SCOPE, rest)
    if "source_file=" in rest and (source := _SOURCE.search(rest)):
        made.source = f"{source[1].rpartition('/')[2]}:{source[2] or 0}"
    if "control-predecessors" in rest:
        made.after = _NAME.findall(_found(_AFTER, rest).replace("%", ""))
    if made.opcode == "dot":
        made.contracted = _ints(_found(_FACTS["dot"], rest))
    elif made.opcode == "get-tuple-element":
        made.number = int(_found(_FACTS["index"], rest) or 0)
    elif made.opcode == "compare":
        made.compares = _found(_FACTS["direction"], rest)
    elif made.opcode == "while":
        trips = _found(_TRIPS, rest)
        made.trips = int(trips) if trips else None
    elif made.opcode in _WINDOWED:
        made.windows = _windows(_found(_FACTS["window"], rest))
        made.labels = _found(_FACTS["labels"], rest)
        made.groups = int(_found(_FACTS["groups"], rest) or 1)


def _called(rest: str) -> list[str]:
    """Of a while the condition, then the body, in whatever order they stand."""
    plain = rest.partition("metadata=")[0]
    found = _CALLED.findall(plain)
    for many in _CALLED_MANY.findall(plain):
        found += _NAME.findall(many.replace("%", ""))
    if "body=" in plain and "condition=" in plain and plain.index("body=") < plain.index("condition="):
        found.reverse()
    return found


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal() and len(part) < 19)


def _operands(text: str) -> list[str]:
    if "%" in text:
        return re.findall(r"%([\w.\-]+)", text)
    return _NAME.findall(_ARRAY.sub("", text)) if text.strip() else []


def _windows(text: str) -> list[AxisWindow]:
    """Of "size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=2x2 rhs_dilate=1x1"."""
    facts = {key: value.split("x") for key, _, value in (part.partition("=") for part in text.split())}
    rank = len(facts.get("size", ()))

    def at(key: str, axis: int, default: str) -> str:
        values = facts.get(key, ())
        return values[axis] if axis < len(values) else default

    def whole(value: str) -> int:
        return int(value) if _NUMBER.fullmatch(value) else 1

    windows = []
    for axis in range(rank):
        low, _, high = at("pad", axis, "0_0").partition("_")
        sizes = [whole(at(key, axis, "1")) for key in ("size", "stride", "lhs_dilate", "rhs_dilate")]
        windows.append(AxisWindow(sizes[0], sizes[1], whole(low), whole(high or "0"), sizes[2], sizes[3]))
    return windows


def _shape_at(line: str, place: int, where: str) -> tuple[Shape, int]:
    if line.startswith("(", place):
        end = _closing(line, place, where)
        return shape_of(line[place : end + 1], where), end + 1
    match = _ARRAY.match(line, place)
    if match is None:
        raise _broken("has no shape", line, where)
    return _array(match[1], match[2], where), match.end()


@lru_cache(maxsize=65536)
def shape_of(text: str, where: str = "") -> Shape:
    """Of "f32[2,3]{1,0}" or "(f32[2], s32[])"."""
    text = text.strip()
    if not text.startswith("("):
        match = _ARRAY.fullmatch(text)
        if match is None:
            raise _broken("is no shape", text, where)
        return _array(match[1], match[2], where)
    parts, depth, start = [], 0, 1
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or (letter == ")" and depth == 0):
            if text[start:place].strip():
                parts.append(text[start:place])
            start = place + 1
    return Shape("tuple", (), tuple(shape_of(part, where) for part in parts))


@lru_cache(maxsize=65536)
def _array(kind: str, dims: str, where: str) -> Shape:
    if not is_dtype(kind):
        raise _broken("has an unknown type", kind, where)
    sizes = [size.strip().removeprefix("<=") for size in dims.split(",")] if dims.strip() else []
    if not all(size.isdecimal() and len(size) < 19 for size in sizes):
        raise _broken("has a size that is no number", f"{kind}[{dims}]", where)
    return Shape(kind, tuple(map(int, sizes)))


def _closing(line: str, start: int, where: str) -> int:
    """Where the parenthesis at `start` closes."""
    end = line.find(")", start)
    if end >= 0 and line.find("(", start + 1, end) < 0:
        return end
    depth = 0
    for place in range(start, len(line)):
        letter = line[place]
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
            if depth == 0:
                return place
    raise _broken("has a parenthesis that does not close", line, where)


def _sources(lines: list[str]) -> dict[str, str]:
    """File and line of each stack frame, from the tables at the top of newer dumps."""
    tables: dict[str, dict[str, str]] = {}
    current = None
    for line in lines:
        word = line.strip()
        if word.startswith(("ENTRY", "%")):
            break
        if word in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            current = tables.setdefault(word, {})
        elif current is not None and word:
            key, _, rest = word.partition(" ")
            current[key] = rest
    files = tables.get("FileNames", {})
    places = {}
    for key, facts in tables.get("FileLocations", {}).items():
        file = files.get(_found(re.compile(r"file_name_id=(\d+)"), facts), "").strip('"').rpartition("/")[2]
        line_number = _found(re.compile(r"\bline=(\d+)"), facts)
        places[key] = f"{file}:{line_number}" if file else ""
    frames = tables.get("StackFrames", {})
    return {key: places.get(_found(re.compile(r"file_location_id=(\d+)"), facts), "") for key, facts in frames.items()}


def _aliases(head: str) -> dict[tuple[int, ...], int]:
    _, found, rest = head.partition("input_output_alias={")
    if not found:
        return {}
    # Entries look like "{0}: (0, {}, may-alias)"; what comes after the table has no colon of that form.
    return {
        _ints(place): int(number) for place, number in _ALIAS.findall(rest.partition("entry_computation_layout")[0])
    }


def _broken(what: str, text: str, where: str) -> UnreadableFile:
    text = text.strip()
    shown = text if len(text) <= 60 else f"{text[:50]}…"
    return UnreadableFile(f"'{shown}' {what}", where, "is it HLO text, and whole?")
