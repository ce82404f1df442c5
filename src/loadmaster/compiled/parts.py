"""Parts: what only compiled functions call is linked into its callers, and becomes machine code there alone."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from llvmlite.binding import parse_bitcode
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

_RESULT: Any = CompileResult
_PIPELINE: Any = DefaultPassBuilder.define_nopython_pipeline


class Part(JITCodeLibrary):
    """Code that is linked into its callers and optimised there. numba would optimise every function once for itself and
    once more in every caller up to the outermost, make machine code at each step, and an entry from Python, which takes
    three times as long as a small loop: most of a cold start."""

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
        super().run_pass(state)
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


class ForCallers(CompilerBase):
    """The pipeline of numba that ends in a part instead of machine code."""

    def define_pipelines(self) -> list[Any]:
        manager = _PIPELINE(self.state)
        manager.passes = [
            (_LowerForCallers if step is NativeLowering else step, words) for step, words in manager.passes
        ]
        manager.finalize()
        return [manager]
