"""Where jobs run that can run anywhere: in this process, or on the machines of a Ray cluster.

A job is a function and what it is given; its result depends on nothing else. So it does not matter where it runs, and
one whose worker was killed is run again: what comes back, and what is counted of it, comes back once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from loadmaster.errors import InvalidSetting, MissingExtra

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
    function: Callable[..., Any], jobs: Iterable[Any], ray: str = "", shared: Sequence[Any] = ()
) -> Iterator[Any]:
    """function(*shared, job) of each job, in the order of the jobs. With the address of a Ray cluster they run there,
    all at once; what they share goes to each machine once."""
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
