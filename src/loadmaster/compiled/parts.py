"""Pipelines of numba for loops: indices that are taken as they are, operators whose types are found once, and parts:
what only compiled functions call is linked into its callers, and becomes machine code there alone."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

from llvmlite.binding import parse_assembly, parse_bitcode
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.core.types import Array, Boolean, Float, Integer, Literal, intp, uintp
from numba.core.types.functions import BaseFunction
from numba.np import arrayobj

_RESULT: Any = CompileResult
_PIPELINE: Any = DefaultPassBuilder.define_nopython_pipeline


class Entry(JITCodeLibrary):
    """Code that Python calls, or that is called apart."""

    def _verify_declare_only_symbols(self) -> None:
        """What it calls must be in it, or in this process: a call to nowhere would end that."""
        super()._verify_declare_only_symbols()
        for function in self._final_module.functions:
            ours = function.is_declaration and function.name.startswith("_ZN") and "loadmaster" in function.name
            if ours and not self._codegen._engine.is_symbol_defined(function.name):
                raise LookupError(f"{function.name} is called but was not made")


class Bare(Entry):
    """One without references to count. It is optimised once, as a whole: going through each function alone, and cheaply
    through the whole before, as numba does for the sake of references, takes long and brings nothing."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


# Indices


@contextmanager
def _indices_as_they_are() -> Iterator[None]:
    """Within the block, code that numba makes takes no index for one from the end of an array. Looking whether each is
    negative makes the loop of the simulator slower by a quarter."""
    counted = arrayobj.fix_integer_index

    def plain(context: Any, builder: Any, kind: Any, index: Any, _size: Any) -> Any:
        return context.cast(builder, index, kind, intp if kind.signed else uintp)

    arrayobj.fix_integer_index = plain
    try:
        yield
    finally:
        arrayobj.fix_integer_index = counted


def _indices(state: Any) -> Any:
    return nullcontext() if state.flags.nrt else _indices_as_they_are()


@register_pass(mutates_CFG=True, analysis_only=False)  # as the pass that it replaces
class _Lower(NativeLowering):
    _name = "lower"

    def run_pass(self, state: Any) -> bool:
        library = Entry if state.flags.nrt else Bare
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        with _indices(state):
            return bool(super().run_pass(state))


# Operators


def _is_plain(kind: Any) -> bool:
    """Numbers, and arrays of them."""
    kind = kind.literal_type if isinstance(kind, Literal) else kind
    return isinstance(kind.dtype if isinstance(kind, Array) else kind, Integer | Boolean | Float)


def remember_operators() -> None:
    """numba looks through all meanings of an operator at every `a + b` and `a[i]`, a sixth of the time it takes to
    compile; those of numbers and arrays are looked up once for each set of types."""
    function: Any = BaseFunction
    look_up, known = function.get_call_type, dict[Any, Any]()

    def get_call_type(self: Any, context: Any, arguments: Any, keywords: Any) -> Any:
        is_operator = getattr(self.typing_key, "__module__", None) == "_operator"
        if keywords or not is_operator or not all(map(_is_plain, arguments)):
            return look_up(self, context, arguments, keywords)
        key = (self, context, tuple(arguments))
        if key not in known:
            known[key] = look_up(self, context, arguments, keywords)
        return known[key]

    function.get_call_type = get_call_type


# Parts


class Part(JITCodeLibrary):
    """Code that is linked into its callers and optimised there. numba would optimise every function once for itself and
    once more in every caller up to the outermost, make machine code at each step, and an entry from Python, which takes
    three times as long as a small loop: most of a cold start."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()

    @classmethod
    def from_bitcode(cls, codegen: Any, name: str, bitcode: bytes) -> Part:
        part = cls(codegen, name)
        part._final_module = parse_bitcode(bitcode)
        part._finalize_final_module()
        return part


@register_pass(mutates_CFG=True, analysis_only=False)  # as the pass that it replaces
class _LowerForCallers(NativeLowering):
    _name = "lower_for_callers"

    def run_pass(self, state: Any) -> bool:
        state.library = Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        with _indices(state):
            super().run_pass(state)
        state.library._ensure_finalized()  # then it knows what must be there before it
        state.reload_init.extend(state.library._reload_init)
        lowered = state["cr"]
        entry = _entry(lowered.fndesc, lowered.env, state.library)
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


def _entry(described: Any, environment: Any, library: Any) -> Any:
    """What stands for a part where numba wants a function: one without an address, which nobody calls."""
    name = described.qualname.split(".")[-1]
    return _dynfunc.make_function(described.lookup_module(), name, "for compiled callers", 0, environment, (library,))


def rebuild_part(target: Any, stored: Any, described: Any, environment: Any, *rest: Any) -> Any:
    """As CompileResult._rebuild, without machine code."""
    signature, objectmode, lifted, annotation, to_reload, environments = rest
    for function in to_reload:
        function()
    library = Part.from_bitcode(target.codegen(), stored[0], stored[2])
    return _RESULT(
        typing_context=target.typing_context,
        target_context=target,
        entry_point=_entry(described, environment, library),
        typing_error=None,
        type_annotation=annotation,
        signature=signature,
        objectmode=objectmode,
        lifted=lifted,
        fndesc=described,
        library=library,
        call_helper=None,
        environment=environment,
        metadata=None,
        reload_init=to_reload,
        referenced_envs=environments,
    )


# Apart


def set_apart(result: Any, function: Any) -> None:
    """From now on callers link nothing of it: they call the machine code that is in this process. What they are kept
    with in the cache says that it must be there first."""
    library, symbol = result.library, result.fndesc.llvm_func_name
    library._shared_module = parse_assembly("")
    arguments = tuple(result.signature.args)
    library._reload_init.add(partial(bring, function.__module__, function.__qualname__, arguments, symbol))


def bring(module: str, name: str, arguments: tuple[Any, ...], symbol: str) -> None:
    """Has the function ready under that symbol, or raises: then what calls it so must be compiled again."""
    dispatcher: Any = getattr(import_module(module), name)
    if arguments not in dispatcher.overloads:
        dispatcher.compile(arguments)
    if dispatcher.overloads[arguments].fndesc.llvm_func_name != symbol:
        raise LookupError(symbol)


class Plain(CompilerBase):
    """The pipeline of numba, with indices as they are where nothing is allocated."""

    lowering: type = _Lower

    def define_pipelines(self) -> list[Any]:
        manager = _PIPELINE(self.state)
        manager.passes = [(self.lowering if step is NativeLowering else step, words) for step, words in manager.passes]
        manager.finalize()
        return [manager]


class ForCallers(Plain):
    """One that ends in a part instead of machine code."""

    lowering = _LowerForCallers
