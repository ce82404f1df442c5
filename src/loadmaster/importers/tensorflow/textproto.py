"""Protocol buffers as text: nested fields, each with all its values. https://protobuf.dev/reference/protobuf/textformat-spec/"""

from __future__ import annotations

import re
from typing import Any

from loadmaster.errors import UnreadableFile

Fields = dict[str, list[Any]]  # of texts, numbers as text, and nested Fields
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<mark>[{}<>\[\]:,;])|(?P<word>[^\s{}<>\[\]:,;"'#]+)"""
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_ESCAPED = re.compile(r"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})|(?P<other>.))")
_MOST_DEPTH = 60  # of messages in messages: Python gives up at about a thousand calls


def parse_textproto(text: str, where: str) -> Fields:
    """The fields of a protocol buffer in text form: by name, each a list of texts and of fields."""
    root: Fields = {}
    stack = [root]
    name = ""
    in_list = False
    last: tuple[Fields, str] | None = None  # where a text may go on in the next one
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _broken(text, place, where)
        place = match.end()
        mark, word, quoted = match["mark"], match["word"], match["text"]
        if mark in ("{", "<"):
            if not name or len(stack) > _MOST_DEPTH:
                raise _broken(text, place, where)
            inner: Fields = {}
            stack[-1].setdefault(name, []).append(inner)
            stack.append(inner)
            name, in_list = "", False
        elif mark in ("}", ">"):
            if len(stack) == 1:
                raise _broken(text, place, where)
            stack.pop()
            name = ""
        elif mark == "[":
            in_list = True
        elif mark == "]":
            name, in_list = "", False
        elif mark == ":" or mark in (",", ";"):
            last = None
        elif quoted is not None:
            value = _unquoted(quoted)
            if name:
                stack[-1].setdefault(name, []).append(value)
                last = (stack[-1], name)
                name = name if in_list else ""
            elif last is not None:
                last[0][last[1]][-1] += value
            else:
                raise _broken(text, place, where)
        elif word is not None:
            if name:
                stack[-1].setdefault(name, []).append(word)
                name = name if in_list else ""
            else:
                name = word
            last = None
    if len(stack) > 1:
        raise UnreadableFile("a brace does not close", where, "is the file cut short?")
    return root


def _unquoted(text: str) -> str:
    """Its text; bytes, which are written as octal or hexadecimal numbers, become characters of the same number."""
    return _ESCAPED.sub(_character, text[1:-1]) if "\\" in text else text[1:-1]


def _character(found: re.Match[str]) -> str:
    if found["octal"]:
        return chr(int(found["octal"], 8) & 255)
    return chr(int(found["hex"], 16)) if found["hex"] else _ESCAPES.get(found["other"], found[0])


def _broken(text: str, place: int, where: str) -> UnreadableFile:
    line = text.count("\n", 0, place) + 1
    return UnreadableFile("it is not the text of a protocol buffer", f"{where}, line {line}", "is it cut short?")


def number(fields: Fields, name: str, default: int = 0) -> int:
    """A whole number; one that is written as a fraction is cut."""
    values = fields.get(name)
    if not values:
        return default
    try:
        return int(values[-1]) if len(str(values[-1])) < 25 else 2**63
    except (TypeError, ValueError):
        try:
            return int(float(values[-1]))
        except (TypeError, ValueError, OverflowError):
            return default


def text_of(fields: Fields, name: str) -> str:
    """The last text that a field has, "" where it has none."""
    values = fields.get(name)
    return values[-1] if values and isinstance(values[-1], str) else ""


def parts(fields: Fields, name: str) -> list[Fields]:
    """The messages that a field has."""
    return [value for value in fields.get(name, ()) if isinstance(value, dict)]
