"""Where jobs run that can run anywhere: in this process, in several of this machine, or on those of a Ray cluster.

A job is a function and what it is given; its result depends on nothing else. So it does not matter where it runs, and
one whose worker was killed is run again: what comes back, and what is counted of it, comes back once.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from loadmaster.errors import InvalidSetting, MissingExtra

PR_SET_PDEATHSIG = 1  # of prctl(2)
TRIES = 3  # in a row that may end with a killed worker and nothing done: one may be chance
AUTO = "auto"  # the cluster that this machine belongs to, else one that is started on it


def connect(address: str) -> Any:
    """Ray, connected to the cluster at the address; the same one for the life of this process."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra.of("ray", "ray", "work on a cluster of machines") from error
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
    try:
        ray.init(address=address, **({} if address == AUTO else quiet) | {"logging_level": "ERROR"})
    except ConnectionError as error:
        if address != AUTO:
            fix = "start one with 'ray start --head' and give its address, or give auto"
            raise InvalidSetting(f"no Ray cluster answers at '{address}'", "--ray", fix) from error
        ray.init(address="local", **quiet)
    except ValueError as error:
        raise InvalidSetting(
            f"'{address}' is no address of a Ray cluster", "--ray", "give HOST:PORT or auto"
        ) from error
    return ray


def in_order(
    function: Callable[..., Any], jobs: Iterable[Any], ray: str = "", shared: Sequence[Any] = (), processes: int = 1
) -> Iterator[Any]:
    """function(*shared, job) of each job, in the order of the jobs.

    Args:
        function: of what is shared and a job; its result must depend on nothing else, for it may run twice.
        jobs: in any number.
        ray: address of a Ray cluster: they run there, all at once.
        shared: goes to each machine once.
        processes: of this machine, where there is no cluster.
    """
    if not ray and processes > 1:
        yield from _in_processes(function, list(jobs), shared, processes)
        return
    if not ray:
        yield from (function(*shared, job) for job in jobs)
        return
    cluster = connect(ray)
    held, task = [cluster.put(one) for one in shared], _task(cluster)
    waiting = [task.remote(None, function, *held, job) for job in jobs]
    try:
        while waiting:
            yield cluster.get(waiting[0])
            waiting.pop(0)
    finally:
        for one in waiting:
            cluster.cancel(one, force=True)


# Processes of this machine

_POOLS: dict[int, ProcessPoolExecutor] = {}  # by their number, for the life of this process


def _in_processes(
    function: Callable[..., Any], jobs: Sequence[Any], shared: Sequence[Any], processes: int
) -> Iterator[Any]:
    """Each in a process that was started afresh and is kept for the next jobs."""
    same, done, tries = _packed((function, shared)), 0, 0
    while done < len(jobs):
        if processes not in _POOLS:
            _POOLS[processes] = _pool(processes)
        pool = _POOLS[processes]
        try:
            for future in [pool.submit(_unpack_and_run, same, _packed(job)) for job in jobs[done:]]:
                yield future.result()
                done, tries = done + 1, 0
        except BrokenProcessPool as error:
            tries += 1
            if tries == TRIES:
                fix = 'call it under `if __name__ == "__main__":`, or with fewer processes where memory is short'
                raise InvalidSetting("processes end before they have done anything", "processes", fix) from error
        finally:
            if done < len(jobs):  # given up by the caller, or broken
                _end(_POOLS.pop(processes))


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin)


def _packed(value: Any) -> bytes:
    """By the protocol under which columns that cannot be written stay so: other loops are compiled for those that
    can."""
    return pickle.dumps(value, 5)


def _unpack_and_run(same: bytes, job: bytes) -> Any:
    function, shared = pickle.loads(same)
    return function(*shared, pickle.loads(job))


def _begin() -> None:
    """On a worker: it has one core, ends with its parent, and leaves interrupts to it."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["LOADMASTER_THREADS"] = "1"


def _end(pool: ProcessPoolExecutor) -> None:
    """At once, whatever its workers are doing."""
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()


def end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever: the kernel ends it where it can (Linux), and a
    thread that looks at the parent does elsewhere."""
    begun_by = multiprocessing.parent_process()
    parent = os.getppid() if begun_by is None else begun_by.pid
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Ray


def _task(cluster: Any) -> Any:
    return cluster.remote(num_cpus=1, max_retries=-1)(_run)  # a worker that dies is no reason to give up


def _run(prepare: tuple[Callable[..., None], Any] | None, function: Callable[..., Any], *given: Any) -> Any:
    """On a worker, which has one core."""
    os.environ["LOADMASTER_THREADS"] = "1"
    if prepare is not None:
        prepare[0](prepare[1])
    return function(*given)


class OnRay(Executor):
    """The interface of a pool of processes over a Ray cluster. `prepare` is called with `shared` before every job: a
    worker that has it already returns at once."""

    def __init__(self, address: str, prepare: Callable[..., None], shared: Any) -> None:
        self.cluster = connect(address)
        self.prepare, self.shared = prepare, self.cluster.put(shared)
        self.task = self.cluster.remote(num_cpus=1, max_retries=-1)(_run_prepared)

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        assert not named, "jobs are given their arguments by position"
        future: Future[Any] = self.task.remote(self.prepare, self.shared, function, *given).future()
        return future


def _run_prepared(prepare: Callable[..., None], shared: Any, function: Callable[..., Any], *given: Any) -> Any:
    return _run((prepare, shared), function, *given)
