"""Specs: "anneal:temperature=0.1,start=heft" to a method, and back.

A spec is a name of the catalog, then settings by the names of the class's fields; the types of the fields say how each
is read. Methods nest: a field that is a Method takes a spec, in brackets where it has commas. `--method`, tables of
benchmarks and plan files all have methods in this form, so that a row can be run again.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from typing import Any

from loadmaster import catalog
from loadmaster.errors import InvalidSetting, UnknownName

DEFAULT = "auto"  # what runs where no method is named
PLACEMENT = "placement"  # the part of the default that fuses nothing
DEEPEST = 50  # brackets of a spec


def make_method(spec: str) -> Any:
    """The method of a spec: a name of the catalog, then settings. Nested ones go in brackets: best-of:of=[heft,etf].

    >>> make_method("heft")
    Heft(contention=True, memory=False, thrift=0.0)
    >>> spec_of(make_method("best-of:of=[heft,m-etf]"))
    'best-of:of=[[heft],[etf:memory=True]]'

    Args:
        spec: settings are written name=value; yes and no for truths, none for nothing, [a,b] for several.

    Raises:
        UnknownName: no method of that name, with the nearest ones.
        InvalidSetting: no such setting, or a value that does not fit its type; the fix lists what there is.
    """
    if not isinstance(spec, str):
        raise InvalidSetting.instead_of(
            "spec", spec, "make_method", "give a name with settings: 'anneal:temperature=0.01'"
        )
    if spec.count("[") > DEEPEST:
        raise InvalidSetting("it is nested too deeply", f"--method {spec[:60]}…", f"{DEEPEST} brackets at most")
    name, _, settings = spec.strip().partition(":")
    known = catalog.methods()
    if name not in known:
        _refuse_old_plugin(name)
        raise UnknownName.among("method", name, known, f"--method {spec}")
    target, _, preset = known[name].partition("(")
    module, _, attribute = target.partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    return kind(**_settings(kind, preset.rstrip(")"), spec), **_settings(kind, settings, spec))


def _refuse_old_plugin(name: str) -> None:
    if name in catalog.named_by_old_plugins():
        what = f"'{name}' is in the entry-point group loadmaster.optimizers, which is now loadmaster.methods"
        raise InvalidSetting(what, f"--method {name}", "rename the group in the package that adds it")


def _settings(kind: type, text: str, spec: str) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    values = {}
    for item in split_list(text):
        key, equals, value = item.partition("=")
        if not equals or key not in fields:
            choices = ", ".join(fields) or "it has none"
            raise InvalidSetting(f"'{item}' is no setting of '{spec.partition(':')[0]}'", spec, f"settings: {choices}")
        values[key] = _convert(value, fields[key], item)
    return values


def split_list(text: str) -> list[str]:
    """Parts between commas that are not inside brackets.

    >>> split_list("of=[heft,etf],seed=1")
    ['of=[heft,etf]', 'seed=1']
    """
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [part for part in [*parts, part] if part]


def _convert(text: str, hint: Any, item: str) -> Any:
    origin = typing.get_origin(hint)
    try:
        if origin in (types.UnionType, typing.Union):
            inner = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
            return (
                None if text == "none" and len(inner) < len(typing.get_args(hint)) else _convert(text, inner[0], item)
            )
        if origin is typing.Literal:
            if text not in typing.get_args(hint):
                raise ValueError
            return text
        if origin is tuple:
            return tuple(_convert(part, typing.get_args(hint)[0], item) for part in split_list(_inside(text)))
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if hint in (int, float, str):
            return hint(text)
    except (ValueError, KeyError) as error:
        choices = (
            "|".join(map(str, typing.get_args(hint))) if origin is typing.Literal else getattr(hint, "__name__", hint)
        )
        raise InvalidSetting(f"'{text}' does not fit '{item.partition('=')[0]}'", item, f"give {choices}") from error
    return make_method(_inside(text))


def _inside(text: str) -> str:
    """Without the brackets around it, and only those: what is inside may begin and end with others."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def spec_of(method: Any) -> str:
    """A spec that makes the method again: its name and what differs from the defaults. The name of its class where
    the catalog has none, which then makes nothing."""
    kind = f"{type(method).__module__}:{type(method).__qualname__}"
    name = next((name for name, target in catalog.methods().items() if target == kind), None)
    if name is None or not dataclasses.is_dataclass(method):
        return name or type(method).__qualname__
    changed = [
        f"{field.name}={_text(getattr(method, field.name))}"
        for field in dataclasses.fields(method)
        if getattr(method, field.name) != _default(field)
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(_text(part) for part in value)}]"
    if dataclasses.is_dataclass(value):
        return f"[{spec_of(value)}]"
    return "none" if value is None else str(value)


# What options of the command line come to


def with_settings(spec: str, settings: str) -> str:
    """The spec of a method with more settings."""
    return f"{spec}{',' if ':' in spec else ':'}{settings}"


def fused(spec: str, fusion: str) -> str:
    """The method under what --fusion says: auto lets it decide, none is told to those that fuse by default, greedy
    fuses before it plans."""
    default = spec.partition(":")[0] == DEFAULT
    if fusion == "none" and default:
        return with_settings(spec, "fusion=none")
    return f"greedy-fusion:inner=[{PLACEMENT if spec == DEFAULT else spec}]" if fusion == "greedy" else spec


def fitting(spec: str, recompute: str, offload: str) -> str:
    """The method, told what it may not do to make a plan fit, where it does that by itself."""
    refused = [f"{name}=no" for name, way in (("recompute", recompute), ("offload", offload)) if way == "none"]
    default = spec.partition(":")[0] == DEFAULT
    return with_settings(spec, ",".join(refused)) if refused and default else spec
