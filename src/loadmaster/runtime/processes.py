"""A plan over several processes, one for each device, by torch.distributed point to point.

Every process makes the same list of kernels and sends (see `schedule`) and does its own part of it, in that order.

No legal plan can deadlock. The list is an order in which everything comes after all that it waits for. A process starts
a send when its turn comes and never waits for the other side; it posts a receive when the turn of that send comes, and
waits for it only before the first kernel that reads it, which stands further down. Suppose processes wait for ever, and
take the earliest entry of the list that one of them waits at. It waits for a send further up, whose sender has come
past it, or would be waiting at an even earlier entry: so the send was started and the receive posted, and it arrives.
Both ends of a pair start their messages in the order of the list, in both directions, which is what NCCL asks for.

Tensors between GPUs go by NCCL, all others by gloo, and those between a GPU and a CPU through the host's memory: both
ends of a message must use the same. Messages of a pair keep the order of the list either way.

Random numbers come from one stream, as in one process: it is handed on with the list from the process that drew last
to the next that draws, and given back to all at the end of the step.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loadmaster.cluster import Cluster
from loadmaster.errors import CannotRun, InvalidSetting
from loadmaster.runtime.devices import check_count, existing

TIMEOUT_S = 120.0  # of a group made here, and at most for another's plan; a process that died is noticed at once
_applied = 0  # steps of this process that met the others
_RANDOM_TAG = 1 << 24  # tags of messages that carry random state; those of tensors count from 0


@dataclass(frozen=True)
class Throttle:
    """Links of a set speed, for experiments on one machine: a message may be used once its time on such a link has
    passed. That time is written on a board that all processes see, a file of their shared memory.

    Attributes:
        bytes_per_s, latency_s: of every link.
        messages: tags that fit on it.
    """

    bytes_per_s: float
    latency_s: float
    board: str
    messages: int = 1 << 20

    def opened(self) -> Any:
        """[tags] when each message is due, on the clock that processes of one machine share."""
        return torch.from_file(self.board, shared=True, size=self.messages, dtype=torch.float64).numpy()


@dataclass(frozen=True)
class MessageShape:
    """What both ends of a message know of its tensor, so that nothing but its bytes is sent.

    Attributes:
        size, stride, offset: of the tensor, in elements of its storage.
        dtype: of its elements.
        storage_bytes: that are sent: all of the storage, whatever part the tensor shows.
    """

    size: Sequence[int]
    stride: Sequence[int]
    dtype: torch.dtype
    storage_bytes: int
    offset: int

    @classmethod
    def of(cls, traced: Tensor) -> MessageShape:
        storage = traced.untyped_storage().nbytes()
        return cls(tuple(traced.shape), traced.stride(), traced.dtype, storage, int(traced.storage_offset()))

    def empty(self, device: torch.device) -> Tensor:
        memory = torch.empty(self.storage_bytes // self.dtype.itemsize, dtype=self.dtype, device=device)
        return memory.as_strided(self.size, self.stride, self.offset)

    def fits(self, tensor: Tensor) -> bool:
        return tensor.stride() == tuple(self.stride) and tensor.untyped_storage().nbytes() == self.storage_bytes

    def bytes_of(self, tensor: Tensor) -> Tensor:
        """All of its memory, as bytes: what a send costs, views and all."""
        memory = tensor.as_strided((self.storage_bytes // self.dtype.itemsize,), (1,), 0)
        return memory.view(torch.uint8)


class Post:
    """Messages of one process.

    Holds what is on its way until it has left, and where links are throttled, says when a message has passed. Both ends
    go through the same schedule, so that no message waits for one behind it.
    """

    def __init__(self, rank: int, devices: Sequence[torch.device], throttle: Throttle | None = None) -> None:
        self.rank, self.devices, self.throttle = rank, devices, throttle
        self.device = devices[rank]
        self.mixed = len({device.type for device in devices}) > 1
        self.free_at = 0.0  # when the outgoing wire is next free, for throttled links
        self.board = None if throttle is None else throttle.opened()
        self.going: list[tuple[Any, Tensor]] = []  # not waited for, with the memory that is being read

    def wire(self, peer: int) -> torch.device:
        """Where the memory of messages with that process is: the host's, unless both ends are alike."""
        return self.device if self.devices[peer].type == self.device.type else torch.device("cpu")

    def keep(self, work: Any, memory: Tensor) -> None:
        """Holds what is being sent until it has left."""
        self.going.append((work, memory))

    def left(self, work: Any, who: str = "another process") -> None:
        """Waits for a send, once: gloo would wait for ever for one that was waited for already."""
        if any(one is work for one, _ in self.going):
            waited(work, who)
            self.going = [entry for entry in self.going if entry[0] is not work]

    def finish(self) -> None:
        """At the end of a step: everything has left."""
        for work, _ in list(self.going):
            self.left(work)

    def due(self, nbytes: int) -> float:
        """When a message that starts now has passed a throttled wire, which carries one at a time."""
        assert self.throttle is not None
        start = max(time.monotonic(), self.free_at)
        self.free_at = start + self.throttle.latency_s + nbytes / self.throttle.bytes_per_s
        return self.free_at


class Outgoing:
    """One send of this process."""

    def __init__(self, post: Post, peer: int, tag: int, shape: MessageShape) -> None:
        self.post, self.peer, self.tag, self.shape = post, peer, tag, shape
        self.work: Any = None

    def __call__(self, tensor: Tensor) -> None:
        if not self.shape.fits(tensor):
            tensor = self.shape.empty(tensor.device).copy_(tensor)
        memory = self.shape.bytes_of(tensor).to(self.post.wire(self.peer))
        if self.post.board is not None:
            self.post.board[self.tag] = self.post.due(memory.numel())
        self.work = _started(dist.isend, memory, self.peer, self.tag)
        self.post.keep(self.work, memory)

    def left(self) -> None:
        """Before the tensor is overwritten."""
        self.post.left(self.work, f"the process of device {self.peer}")


class Incoming:
    """One receive of this process: into memory of its own, or straight into that of a tensor that it overwrites."""

    def __init__(self, post: Post, peer: int, tag: int, shape: MessageShape) -> None:
        self.post, self.peer, self.tag, self.shape = post, peer, tag, shape
        self.work: Any = None
        self.staged: tuple[Tensor, Tensor] | None = None  # where it goes, and what it arrives in

    def __call__(self) -> Tensor:
        tensor = self.shape.empty(self.post.device)
        memory = self.shape.bytes_of(tensor)
        through = memory if self.post.wire(self.peer) == self.post.device else torch.empty_like(memory, device="cpu")
        self.staged = None if through is memory else (memory, through)
        self.work = _started(dist.irecv, through, self.peer, self.tag)
        return tensor

    def land(self, place: Tensor) -> None:
        """Into what lies in the host's memory and is not read any more; by way of a copy where it is formed otherwise
        than what is sent."""
        if self.shape.fits(place):
            self.work = _started(dist.irecv, self.shape.bytes_of(place.detach()), self.peer, self.tag)
        else:
            self.staged = (place, self())

    def arrive(self) -> None:
        who = f"the process of device {self.peer}"
        waited(self.work, who)
        if self.staged is not None:
            self.staged[0].copy_(self.staged[1])
            self.staged = None
        if self.post.board is not None:
            time.sleep(max(0.0, float(self.post.board[self.tag]) - time.monotonic()))


def waited(work: Any, who: str) -> None:
    """Waits for a message, as long as its group does; CannotRun where its other end is gone."""
    if work is None:
        return
    with _answering(who, "a message between processes"):
        work.wait()


def _started(start: Any, memory: Tensor, peer: int, tag: int) -> Any:
    """A send or a receive; CannotRun where its other end is known to be gone."""
    with _answering(f"the process of device {peer}", "a message between processes"):
        return start(memory, peer, tag=tag)


@contextmanager
def _answering(who: str, where: str) -> Iterator[None]:
    """Says who it was where another process is gone or silent, and how long that was waited for."""
    begun = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"{who} is gone or does not answer (waited {time.monotonic() - begun:.0f} s): {reason}"
        raise CannotRun(what, where, "see what it said; start all processes again") from error


def same_everywhere(digests: Mapping[str, str], rank: int, devices: Sequence[str]) -> None:
    """Before the first message: CannotRun where a process has another plan, or none in time, by its rank.

    Processes with different plans would wait for messages that nobody sends. `digests`: of what all must share, each
    with its name.
    """
    global _applied
    _applied += 1
    store, count = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    most = timedelta(seconds=TIMEOUT_S)
    store.set(f"loadmaster/{_applied}/{rank}", json.dumps(dict(digests)))
    for peer in range(count):
        who = f"the process of rank {peer} ('{devices[peer]}')"
        with _answering(f"{who} has applied no plan: it", "the start of the step"):
            key = f"loadmaster/{_applied}/{peer}"
            store.wait([key], min(most, getattr(store, "timeout", most)))
            theirs = json.loads(store.get(key))
        differ = [name for name, digest in digests.items() if theirs.get(name) != digest]
        if differ:
            what = f"{who} runs with another {differ[0]} than rank {rank} ('{devices[rank]}')"
            fix = "start all processes with one plan file, one model and equal inputs"
            raise CannotRun(what, f"rank {peer}, rank {rank}", fix)


class RandomPass:
    """Hands the state of the random stream from one process to another of the same type of device."""

    def __init__(self, post: Post, src: int, dst: int, number: int) -> None:
        self.device, self.sends = post.device, post.rank == src
        self.peer, self.tag = dst if self.sends else src, _RANDOM_TAG + number

    def __call__(self) -> None:
        state = random_state(self.device)
        if self.sends:
            waited(_started(dist.isend, state, self.peer, self.tag), f"the process of device {self.peer}")
        else:
            waited(_started(dist.irecv, state, self.peer, self.tag), f"the process of device {self.peer}")
            set_random_state(state, self.device)


def random_state(device: torch.device) -> Tensor:
    """Of the stream that ops on that device draw from; always in the host's memory."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    """The next numbers drawn on that device follow this state."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def share_random(src: int, post: Post) -> None:
    """Every process whose device draws from such a stream goes on with that of one."""
    alike = post.devices[src].type == post.device.type
    state = random_state(post.device)
    size = torch.tensor([state.numel()])
    with _sharing(src):
        dist.broadcast(size, src)
        held = state if alike else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(held, src)
    if alike:
        set_random_state(held, post.device)


def share(tensor: Tensor, src: int) -> Tensor:
    """A tensor of one process in all."""
    memory = tensor.contiguous()
    with _sharing(src):
        dist.broadcast(memory.view(torch.uint8) if memory.dim() else memory, src)
    return memory


def share_state(tensors: Mapping[str, Tensor], owner: Mapping[str, int]) -> None:
    """Tensors of a module as their owners have them, in every process; by way of the host, since a tensor may be on a
    GPU in one process and not in another."""
    for name, value in tensors.items():
        with torch.no_grad():
            value.copy_(share(value.detach().cpu(), owner.get(name, 0)))


def _sharing(src: int) -> AbstractContextManager[None]:
    """Something of one process is made known to all: each waits for that one, and it for the others."""
    others = "another process" if dist.get_rank() == src else f"the process of rank {src}, or one beside it,"
    return _answering(others, f"all processes, waiting for rank {src}")


def joined_group(devices: int) -> int | None:
    """This process's rank in a run of several, started by torchrun; None in a run of one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_initialized():
        count = dist.get_world_size()
    if count == 1:
        return None
    if count != devices:
        what = f"{count} processes were started for a plan on {devices} devices"
        raise InvalidSetting(what, "torchrun", f"give --nproc-per-node {devices}")
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        with _answering(f"one of the {count} processes", f"rank {os.environ.get('RANK', '?')}, at the start"):
            dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
        atexit.register(_leave_group)
    return dist.get_rank()


def _leave_group() -> None:
    """Its threads must end before the interpreter does, which otherwise may abort."""
    if dist.is_initialized():
        with suppress(Exception):  # others may have gone already
            dist.destroy_process_group()


def places_of_ranks(
    cluster: Cluster, given: Sequence[str | torch.device] | None, rank: int
) -> tuple[torch.device, ...]:
    """The torch device of each process: as given; else a GPU for each that is no host, in their order on each machine,
    where all machines have enough, else the CPU for all. Only this process's own is touched."""
    names = cluster.device_names
    if given is None:
        found: list[Any] = [None] * len(names)
        with _answering("another process", f"rank {rank}, asking for the device of each"):
            dist.all_gather_object(found, str(own_place([d.kind == "cpu" for d in cluster.devices], rank)))
        hosts = [device.kind == "cpu" for device in cluster.devices]
        short = any(place == "cpu" and not host for place, host in zip(found, hosts, strict=True))
        return tuple(torch.device("cpu" if short else place) for place in found)
    check_count(given, names)
    return tuple(existing(name) if number == rank else torch.device(name) for number, name in enumerate(given))


def own_place(hosts: Sequence[bool], rank: int) -> torch.device:
    """The device of this process. `hosts`: whether each device of the plan is a CPU. Machines have processes of
    neighbouring numbers, as torchrun starts them."""
    first = rank - int(os.environ.get("LOCAL_RANK", str(rank)))
    here = range(first, min(len(hosts), first + int(os.environ.get("LOCAL_WORLD_SIZE", str(len(hosts))))))
    on_gpus = [number for number in here if not hosts[number]]
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if hosts[rank] or len(on_gpus) > there:  # a process without a GPU of its own would share one with another
        return torch.device("cpu")
    return torch.device("cuda", on_gpus.index(rank))
