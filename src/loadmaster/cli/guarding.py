"""What every verb is wrapped in: errors of ours without a traceback, exit codes, and answers as JSON.

Exit codes are those of the error (1, or 3 for a plan that does not fit). With --json an error is an object, too; with
--debug it has its traceback.
"""

from __future__ import annotations

import errno
import functools
import json as json_text
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import typer

from loadmaster.errors import LoadmasterError, printable


def quieten() -> None:
    """Log lines and warnings of other packages are not for users of ours; our own warnings come in a line each."""
    logging.disable(logging.WARNING)

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any) -> None:
        if f"{os.sep}loadmaster{os.sep}" in filename:
            print(f"warning: {printable(str(message))}", file=sys.stderr)

    warnings.showwarning = show  # type: ignore[assignment]


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Errors of ours without a traceback, on stderr, and as JSON on stdout too when asked for."""

    @functools.wraps(function)
    def guarded(**settings: Any) -> None:
        try:
            function(**settings)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(1) from None
        except Exception as error:
            raise typer.Exit(_tell(error, settings["json"], settings["debug"])) from None

    return guarded


def _tell(error: Exception, as_json: bool, debug: bool) -> int:
    """Prints the error; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    ours = error if isinstance(error, LoadmasterError) else _of_ours(error)
    try:
        if as_json:
            print_json({"error": error_data(ours)})
        sys.stdout.flush()
    except OSError:  # what is left in its buffer would be tried again, and complained of, at the very end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    print(f"error: {ours}", file=sys.stderr)
    return ours.exit_code


def _of_ours(error: Exception) -> LoadmasterError:
    """What the machine did is no bug."""
    if _lacks_memory(error):
        return LoadmasterError("there is not enough memory for this", "", _more_memory())
    if isinstance(error, OSError) and error.errno is not None:
        place = printable(str(error.filename)) if error.filename else "an open file, or standard output"
        fix = "make room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the disk and the path"
        return LoadmasterError(f"the system says: {os.strerror(error.errno)}", place, fix)
    if isinstance(error, RecursionError):
        return LoadmasterError("it is nested too deeply", "", "give something simpler")
    what = f"something went wrong inside loadmaster: {type(error).__name__}: {error}"
    return LoadmasterError(what, "", "this is a bug; --debug shows where")


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether it, or what it came of, is memory that the system did not give; libraries have words of their own."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


# The loader's, the C library's, Python's own where a thread has no stack, torch's.
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't start new thread", "can't allocate memory")


def _more_memory() -> str:
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    except ImportError:  # Windows
        return "give a smaller graph, or fewer devices"
    if limit == resource.RLIM_INFINITY:
        return "give a smaller graph, or fewer devices"
    return f"this process may have {limit >> 20:,} MiB (ulimit -v): give it more, a smaller graph, or fewer devices"


def error_data(error: LoadmasterError) -> dict[str, Any]:
    """An error as JSON answers have it."""
    data = {"type": type(error).__name__, "what": error.what, "where": error.where, "fix": error.fix}
    return {**data, "exit_code": error.exit_code}


def print_json(document: Mapping[str, Any]) -> None:
    """Prints the answer of a verb under `--json`; nothing else goes to standard output then."""
    print(json_text.dumps(document, indent=2))


def with_error(document: dict[str, Any], error: LoadmasterError | None) -> dict[str, Any]:
    """The answer, with what is wrong beside it where a plan was found that does not fit."""
    return document if error is None else {**document, "error": error_data(error)}


def finish(misfit: LoadmasterError | None) -> None:
    """Ends a verb whose answer is out: with the exit code of what is wrong, where something is."""
    if misfit is not None:
        sys.stdout.flush()
        print(f"error: {misfit}", file=sys.stderr)
        raise typer.Exit(misfit.exit_code)
