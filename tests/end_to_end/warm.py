"""Commands in forks of one process that has imported what they need and loaded what is compiled.

    done = warm.run("plan", "model.json", "--on", "2xp100-pcie")

A process of its own for each, as `command` makes, but for the seconds that imports take: they are most of what a short
command takes, and the documents have hundreds. That commands work from nothing is checked where `command` is used. Run
as a program it is that process: a line of JSON asks for forks beside each other, a line with their exit statuses
answers.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import runpy
import select
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.search.workers import end_with_parent
from loadmaster.simulator import threads

ROOT = Path(__file__).parents[2]
LONGEST_S = 300.0
_servers: list[subprocess.Popen[str]] = []


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `loadmaster` with these words."""
    return _ask({"words": ["loadmaster", *words], "env": {**os.environ, **environment}})


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """As `python -c` with that code."""
    return _ask({"words": ["-c"], "code": code})


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    """As `python` with these words."""
    return _ask({"words": list(words), "script": words[0]})


def run_beside(
    code: str, words: Sequence[str], environments: Sequence[Mapping[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    """As `python -c` with that code and these words, once in each environment, all at the same time."""
    given = [{**os.environ, **environment} for environment in environments]
    return _ask_many([{"words": ["-c", *words], "code": code, "env": each} for each in given])


def _ask(job: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return _ask_many([job])[0]


def _ask_many(jobs: list[dict[str, Any]]) -> list[subprocess.CompletedProcess[str]]:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        for number, job in enumerate(jobs):
            job["out"], job["err"] = (str(Path(folder, f"{name}{number}")) for name in ("out", "err"))
            job |= {"cwd": os.getcwd(), "env": job.get("env", dict(os.environ))}
        print(json.dumps(jobs), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], LONGEST_S)[0]:
            _servers.clear()
            server.kill()
            raise subprocess.TimeoutExpired(jobs[0]["words"], LONGEST_S)
        answer = server.stdout.readline()
        assert answer, f"the process that commands are forked from ended at {jobs[0]['words']}"
        return [
            subprocess.CompletedProcess(
                job["words"], status, Path(job["out"]).read_text(), Path(job["err"]).read_text()
            )
            for job, status in zip(jobs, json.loads(answer), strict=True)
        ]


def _server() -> subprocess.Popen[str]:
    if not _servers:
        program, pipe = [sys.executable, "-m", "tests.end_to_end.warm"], subprocess.PIPE
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # libraries of numbers start threads when they are imported
        _servers.append(subprocess.Popen(program, cwd=ROOT, env=alone, stdin=pipe, stdout=pipe, text=True))
        atexit.register(_servers[0].kill)
    return _servers[0]


# The process that is forked


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _warm()
    gc.collect()
    gc.freeze()  # what all forks share is looked at by none, and stays shared
    for _ in range(100):  # one that has ended is listed for a moment
        if _threads() > 1:
            time.sleep(0.1)
    assert _threads() == 1, "a fork has but the thread that made it"
    for line in sys.stdin:
        children = [_forked(job) for job in json.loads(line)]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(ended), file=answers, flush=True)


def _forked(job: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        _be(job)
    return child


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _warm() -> None:
    """Imports, a step of torch that is captured, and a short run of the default, so that its compiled loops are loaded;
    its threads are ended."""
    for name in ("matplotlib.figure", "matplotlib.backends.backend_svg", "typer._adapters", *_modules()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from loadmaster import Budget, Cluster, price, solve
    from loadmaster.search.warming import _few_ops

    with contextlib.suppress(ImportError):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401

        from loadmaster.importers.torch.export import capture_step

        torch.set_num_threads(1)
        capture_step(torch.nn.Linear(2, 2), (torch.ones(2, 2),), training=True)
    solve(price(_few_ops(), Cluster.preset("2xp100-pcie")), "auto", Budget(None, 200))
    while threads._pool:
        threads._pool.pop().shutdown()


def _modules() -> list[str]:
    """What commands import: all but what is a program, or for other machines."""
    import loadmaster

    found = pkgutil.walk_packages(loadmaster.__path__, "loadmaster.", onerror=lambda name: None)
    return [module.name for module in found if not module.name.endswith("__main__")]


def _be(job: dict[str, Any]) -> None:
    """The fork: what a fresh process would be, then what was asked for; it does not return. It ends with its parent."""
    code: Any = 1
    try:
        end_with_parent()
        os.environ.clear()
        os.environ.update(job["env"])
        os.chdir(job["cwd"])
        for number, (name, flags) in enumerate(((os.devnull, os.O_RDONLY), (job["out"], NEW), (job["err"], NEW))):
            os.dup2(os.open(name, flags, 0o600), number)
        sys.argv = job["words"]
        code = _do(job) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _do(job: dict[str, Any]) -> None:
    if "code" in job:
        exec(compile(job["code"], "<string>", "exec"), {"__name__": "__main__"})
    elif "script" in job:
        _fork_workers()
        sys.path[0] = str(Path(job["script"]).parent)
        runpy.run_path(job["script"], run_name="__main__")
    else:
        from loadmaster.cli.verbs import main as loadmaster

        loadmaster()


def _fork_workers() -> None:
    """Processes that a script would spawn are forks, too: they have imported what they need."""
    plain: Any = multiprocessing.get_context
    contexts: Any = multiprocessing
    contexts.get_context = lambda method=None: plain("fork" if method == "spawn" else method)
    os.register_at_fork(after_in_child=threads._pool.clear)  # threads stay behind


if __name__ == "__main__":
    main()
