"""load: whatever a model is given as, to a Graph.

What it is decides which importer reads it: the suffix of a file (`catalog.IMPORTERS`), a word before a colon ("zoo:",
"msr:", "pipedream:", a module of Python), or the type of an object. Where a suffix does not say enough, `contents`
looks inside. Importers of torch, ONNX and jax models are imported when they are needed, so that reading a JSON graph
takes none of these packages. No importer runs a model: sizes come from fake tensors or from shapes in the file, flops
from formulas. Every graph goes through `GraphBuilder`, which checks it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from loadmaster import catalog
from loadmaster.errors import (
    ImportFailed,
    InvalidSetting,
    LoadmasterError,
    MissingExtra,
    UnknownName,
    UnreadableFile,
    kind_of,
)
from loadmaster.graph import Graph
from loadmaster.graph.assumptions import refuse_guesses

FORMS = (
    "a file (.json, .onnx, .pt2, .hlo, .mlir, .pb, .pbtxt, .tflite, .stg), msr:FILE, pipedream:FILE, "
    "zoo:NAME, or package.module:callable"
)

_OURS = (".json", ".json.gz", ".json.xz")

# How to get from what people have to what can be loaded.
_TORCH_WEIGHTS = (
    "it holds weights only: write a function that returns (module, example inputs), and give module:function"
)
_ELSEWHERE: Mapping[str, str] = {
    ".pt": _TORCH_WEIGHTS,
    ".pth": _TORCH_WEIGHTS,
    ".bin": _TORCH_WEIGHTS,
    ".ckpt": _TORCH_WEIGHTS,
    ".safetensors": _TORCH_WEIGHTS,
    ".gguf": "it holds weights, not a computation: 'plan' and 'fits' read its header, other verbs take .onnx",
    ".h5": "convert it to .onnx with tf2onnx",
    ".keras": "convert it to .onnx with tf2onnx",
    ".mlmodel": "convert it to .onnx with onnxmltools",
    ".py": "give package.module:callable, where the callable returns (module, example inputs)",
    ".onnxtxt": "save it as binary .onnx",
}


def load(
    model: Any,
    *,
    training: bool = True,
    inputs: Any = None,
    optimizer: str = "adam",
    dims: Mapping[str, int] | None = None,
    name: str = "",
    dtype: str | None = None,
    batch: int | None = None,
    gpu: bool = False,
    assume: bool = False,
) -> Graph:
    """The graph of a model: a file, "zoo:NAME", "package.module:callable", a torch.nn.Module, an ExportedProgram, a
    function of jax, an onnx.ModelProto, or a Graph, which is returned as it is.

    Nothing is computed and no weight is read: torch modules are traced on fake tensors.

    >>> load("zoo:rnnlm-2").num_ops
    4546

    Args:
        model: a file may have settings after "#": "model.onnx#batch=8", "graphs.jsonl#3", "step.hlo#trips=8".
        training: for torch modules and the zoo: a step with its backward pass and updates, else an inference. Files
            hold one graph or the other.
        inputs: examples for a torch module or a function of jax: a tuple of positional ones, a dict of named ones, or
            both as ((...), {...}); sizes of the graph are theirs.
        optimizer: that updates the weights in a training step of torch.
        dims: unknown dimensions of an ONNX model, by name.
        name: of the graph; by default the model's.
        dtype, batch: change what "package.module:callable" builds: the type its tensors are made in, and the rows of
            its example inputs.
        gpu: a torch module is captured as a CUDA device runs it, which has other kernels for attention than a CPU.
        assume: accept a graph of which over a tenth is assumed: sizes or arithmetic that no importer knows.

    Raises:
        ImportFailed: the model cannot be traced (with its line), or is no model; the fix says what to give.
        UnreadableFile: a file that is missing or cut short.
        UnknownName: no such model, format or function.
        MissingExtra: a package that this importer needs, with the pip command.
    """
    if isinstance(model, Graph):
        return model
    graph = _loaded(model, training, inputs, optimizer, dims, name, dtype, batch, gpu)
    return graph if assume else refuse_guesses(graph, graph.name)


def _loaded(
    model: Any,
    training: bool,
    inputs: Any,
    optimizer: str,
    dims: Mapping[str, int] | None,
    name: str,
    dtype: str | None,
    batch: int | None,
    gpu: bool,
) -> Graph:
    if isinstance(model, (str, os.PathLike)):
        text = os.fspath(model)
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        model, timed, trace = text.partition("#times=")
        if timed and trace and not os.path.exists(text):
            graph = _loaded(model, training, inputs, optimizer, dims, name, dtype, batch, gpu)
            return _resolve("loadmaster.importers.benchmarks.trace:with_times")(graph, trace)  # type: ignore[no-any-return]
        if text.startswith("zoo:"):
            return _load_zoo(text.removeprefix("zoo:"), training)
        form, colon, path = text.partition(":")
        if colon and form in catalog.FORMATS:
            return _resolve(catalog.FORMATS[form])(path)  # type: ignore[no-any-return]
        if catalog.is_callable(text):
            return _load_callable(text, training, optimizer, name, dtype, batch, gpu)
        return _load_file(text, dims, training, optimizer)
    return _load_object(model, training, inputs, optimizer, dims, name, gpu)


def _load_object(
    model: Any, training: bool, inputs: Any, optimizer: str, dims: Mapping[str, int] | None, name: str, gpu: bool
) -> Graph:
    if _is(model, "ModelProto", "onnx"):
        load_onnx = _resolve(catalog.IMPORTERS[".onnx"])
        return load_onnx(model, dims=dims, name=name)  # type: ignore[no-any-return]
    if _is_exported(model):
        exported = _resolve("loadmaster.importers.torch.exported:capture_exported")
        return exported(model, inputs=inputs, training=training, optimizer=optimizer, name=name)  # type: ignore[no-any-return]
    if _is_jax(model, inputs):
        return _resolve("loadmaster.importers.hlo.load:load_jax")(model, inputs, name=name)  # type: ignore[no-any-return]
    if not _is(model, "Module", "torch.nn.modules.module"):
        raise ImportFailed(f"{kind_of(model)} is not a model", "load", f"give {FORMS}, or a torch.nn.Module")
    if inputs is None:
        what = f"a {type(model).__name__} needs example inputs"
        raise ImportFailed(what, "load", "give them: load(module, inputs=(x, ...))")
    capture = _resolve("loadmaster.importers.torch.export:capture")
    target = _resolve("loadmaster.importers.torch.step:Target")(gpu=gpu)
    return capture(model, inputs, training=training, optimizer=optimizer, name=name, target=target)  # type: ignore[no-any-return]


def _is_exported(value: Any) -> bool:
    return _is(value, "ExportedProgram", "torch.export")


def _is_jax(function: Any, inputs: Any) -> bool:
    """A function that jax.jit returned, or one that is given jax arrays."""
    if type(function).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return True
    parts = list(inputs.values()) if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else [inputs]
    arrays = "jax" in sys.modules and bool(parts)
    return arrays and callable(function) and not _is(function, "Module", "torch.nn.modules.module")


def _is(value: Any, name: str, module: str) -> bool:
    """Whether it is an instance of a class of a package that may not be installed."""
    return any(
        kind.__name__ == name and kind.__module__.partition("_pb2")[0].startswith(module)
        for kind in type(value).__mro__
    )


def _resolve(target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "torch":
            raise MissingExtra.of("torch", "torch", "capturing a torch model") from None
        raise
    return found


def _load_zoo(name: str, training: bool) -> Graph:
    if name.rpartition("/")[2] not in ("train", "infer"):
        name = f"{name}/{'train' if training else 'infer'}"
    # By name: the zoo stands above the importers.
    return _resolve("loadmaster.zoo.shelf:load_zoo")(name)  # type: ignore[no-any-return]


def _load_file(text: str, dims: Mapping[str, int] | None, training: bool, optimizer: str) -> Graph:
    path, _, part = text.partition("#") if not os.path.exists(text) else (text, "", "")
    suffix = suffix_of(path)
    if suffix.startswith(".jsonl"):
        return _load_line(path, part)
    if suffix not in catalog.IMPORTERS:
        raise _unknown_file(text, path)
    importer = _resolve(catalog.IMPORTERS[suffix])
    if suffix == ".onnx":
        return importer(path, dims={**_dims(part, text), **(dims or {})})  # type: ignore[no-any-return]
    if suffix == ".pt2":
        return importer(path, training=training, optimizer=optimizer)  # type: ignore[no-any-return]
    if suffix in _OURS:
        return importer(text)  # type: ignore[no-any-return]
    return importer(path, _settings(part, text))  # type: ignore[no-any-return]


def sizes_behind(text: str) -> tuple[str, dict[str, int]]:
    """The file and its sizes of "model.onnx#batch=8,height=320".

    >>> sizes_behind("model.onnx#batch=8")
    ('model.onnx', {'batch': 8})
    """
    path, _, part = text.partition("#") if not os.path.exists(text) else (text, "", "")
    return path, _dims(part, text)


def suffix_of(path: str) -> str:
    """The last suffix, with the one before it when that says only how the file is compressed.

    >>> suffix_of("step.HLO.gz"), suffix_of("model.v2.onnx")
    ('.hlo.gz', '.onnx')
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return "".join(suffixes[-2:] if suffixes[-1:] in ([".gz"], [".xz"]) else suffixes[-1:])


def _settings(part: str, text: str) -> dict[str, str]:
    """Of "step.hlo#fusions=open,trips=8"."""
    settings = {}
    for item in filter(None, part.split(",")):
        label, equals, value = item.partition("=")
        if not equals or not value:
            raise InvalidSetting(f"'{item}' gives no setting", text, "write file#name=value,name=value")
        settings[label] = value
    return settings


def _dims(part: str, text: str) -> dict[str, int]:
    """Of "model.onnx#batch=8,sequence=128"."""
    dims = {}
    for item in filter(None, part.split(",")):
        label, equals, size = item.partition("=")
        if not equals or not size.isdecimal() or len(size) > 9:
            raise InvalidSetting(f"'{item}' gives no dimension", text, "write model.onnx#name=size,name=size")
        dims[label] = int(size)
    return dims


def _load_line(path: str, part: str) -> Graph:
    """One graph of many: "graphs.jsonl#3" is the third."""
    from loadmaster.files import load_graphs

    if part and not (part.isdecimal() and len(part) < 10 and int(part) > 0):
        raise InvalidSetting(f"'{part}' is no line of a file", f"{path}#{part}", f"write {path}#1 for the first graph")
    first = int(part or 1) - 1
    found = list(islice(load_graphs(path), first, first + (1 if part else 2)))
    if not found:
        raise UnreadableFile(f"'{path}' has fewer than {first + 1} graphs", "", "give a smaller number")
    if len(found) > 1:
        raise UnreadableFile(f"'{path}' holds many graphs", "", f"say which: {path}#1 is the first")
    return found[0]


def _unknown_file(text: str, path: str) -> LoadmasterError:
    suffix = suffix_of(path)
    if suffix in _ELSEWHERE:
        return ImportFailed(f"'{text}' cannot be loaded as it is", f"a {suffix} file", _ELSEWHERE[suffix])
    if suffix and os.path.exists(path):
        return UnknownName.among("format for files that end in", suffix, catalog.IMPORTERS, text)
    near = _near(text)
    return UnknownName(f"there is no model called '{text}'", "", f"did you mean {near}?" if near else f"give {FORMS}")


def _near(text: str) -> str:
    """A model of the zoo, or a file in that folder, that could be meant; empty where none is near."""
    if not text:
        return ""
    folder, name = os.path.split(text)
    files = sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    entries: Any = _resolve("loadmaster.zoo:ENTRIES")
    known = [f"zoo:{entry}" for entry in entries]
    known += [os.path.join(folder, file) for file in files if suffix_of(file) in catalog.IMPORTERS]
    stems = [one for one in known if one.partition(":")[2] == text or Path(one).stem == name]
    return " or ".join(stems or get_close_matches(text, known, n=2))


def build_module(text: str) -> tuple[Any, Any]:
    """The torch module and the example inputs that package.module:callable returns, with memory of their own: what
    `apply` and `loadmaster run` need, where `load` makes do with tensors that have none."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
        raise ImportFailed(f"'{text}' is no function that makes a torch module", "", "give package.module:callable")
    made = _called(_find_callable(text), text, None)
    if not isinstance(made, tuple) or len(made) != 2 or not _is(made[0], "Module", "torch.nn.modules.module"):
        what = f"'{text}' returned a {type(made).__name__}"
        raise ImportFailed(what, text, "return two things: (module, example inputs)")
    return made


def _load_callable(
    text: str, training: bool, optimizer: str, name: str, dtype: str | None, batch: int | None, gpu: bool
) -> Graph:
    made = build(text, dtype=dtype, batch=batch, real=False)
    if isinstance(made, Graph):
        return made
    if _is(made, "ModelProto", "onnx"):
        return _load_object(made, training, None, optimizer, None, name, gpu)
    name = name or text.partition(":")[2]
    if _is_exported(made):
        return _load_object(made, training, None, optimizer, None, name, gpu)
    graph = _load_object(made[0], training, made[1], optimizer, None, name, gpu)
    settings = {"model": text, "dtype": dtype, "batch": batch}
    return replace(graph, captured={**graph.captured, **{k: v for k, v in settings.items() if v is not None}})


def build(text: str, *, dtype: str | None = None, batch: int | None = None, real: bool = True) -> Any:
    """What "package.module:callable" returns: a torch module and example inputs, or something else that can be loaded.

    The module may lie in the current folder, as for `python -m`; the callable is called without arguments.

    Args:
        text: "package.module:callable".
        dtype: that tensors are made in where the callable does not say.
        batch: rows of the example inputs.
        real: with values in its tensors; else without memory where that is possible.

    Raises:
        UnknownName: no such module or function.
        ImportFailed: it fails, or returns something else; the fix says what to return.
    """
    found = _find_callable(text)
    made = _called(found, text, dtype) if real else _call(found, text, dtype)
    if isinstance(made, Graph) or _is(made, "ModelProto", "onnx") or _is_exported(made):
        return made
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        what = f"'{text}' returned a {type(made).__name__}"
        raise ImportFailed(what, text, "return two things, (module, example inputs), or three: (module, args, kwargs)")
    inputs = made[1] if len(made) == 2 else tuple(made[1:])
    if batch is not None:
        inputs = _resolve("loadmaster.importers.torch.export:with_batch")(inputs, batch, text)
    return made[0], inputs


def _find_callable(text: str) -> Callable[[], Any]:
    module, _, path = text.partition(":")
    try:
        with _here_first():
            found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            fix = "check its name; it must be installed, or lie in the current folder"
            raise UnknownName(f"there is no module '{error.name}'", text, fix) from None
        raise ImportFailed(
            f"'{module}' needs the module '{error.name}', which is not there", text, "install it"
        ) from error
    except Exception as error:
        raise ImportFailed(
            f"importing '{module}' failed: {type(error).__name__}: {error}", text, "see it with --debug"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UnknownName.among(
                f"function in {module}", path, [n for n in dir(found) if not n.startswith("_")], text
            )
        found = getattr(found, part)
    if not callable(found):
        raise ImportFailed(f"'{text}' is a {type(found).__name__}, not a function", text, "name a function")
    return found  # type: ignore[no-any-return]


@contextmanager
def _here_first() -> Iterator[None]:
    """The current folder on the path of modules, as `python -m` has it and an installed command has not."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _call(build: Callable[[], Any], text: str, dtype: str | None) -> Any:
    """What it returns: built from tensors without memory if it can be, so that a model may be of any size."""
    try:
        built = _resolve("loadmaster.importers.torch.building:built")
    except MissingExtra:
        return _called(build, text, dtype)
    return _called(lambda: built(build, text), text, dtype)


def _called(build: Callable[[], Any], text: str, dtype: str | None) -> Any:
    in_dtype = nullcontext() if dtype is None else _resolve("loadmaster.importers.torch.export:default_dtype")(dtype)
    try:
        with in_dtype:
            return build()
    except LoadmasterError:
        raise
    except Exception as error:
        raise ImportFailed(
            f"'{text}' raised {type(error).__name__}: {error}", text, "it is called without arguments"
        ) from error
