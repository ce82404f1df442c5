"""Fitting: whether a model fits, and the smallest change that makes it fit, each tried by planning for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.columns import ints
from loadmaster.serving.placing import Placement, Service, place
from loadmaster.serving.planning import service_for
from loadmaster.serving.requests import Requests

HOST = Device("cpu:0", "cpu", 256 * 2**30, {"default": 1.5e12}, 80e9, 1_000)  # two channels of DDR5, eight cores
PCIE4 = Link(25e9, 10_000)  # x16, as copies from pinned memory reach it


@dataclass(frozen=True)
class Change:
    """One way to make it fit."""

    what: str
    command: str  # options that bring it about
    request_ns: float  # modelled time of a request then
    peak_bytes: int  # on the fullest device


@dataclass(frozen=True)
class Fit:
    """Whether the model fits as it is, and what would help, cheapest first."""

    fits: bool
    need_bytes: int  # peak of the best placement on its fullest device
    have_bytes: int
    request_ns: float
    changes: tuple[Change, ...]


def fit(
    path: str | Path, cluster: Cluster, requests: Requests, *, precision: str = "bfloat16", seconds: float = 1.0
) -> Fit:
    """Plans for the cluster as it is; where that does not fit, for every change that might help."""

    def tried(on: Cluster, asked: Requests, dtype: str) -> tuple[Service, Placement]:
        _, service = service_for(path, on, asked, precision=dtype)  # type: ignore[arg-type]
        return service, place(service, seconds=seconds)

    _, best = tried(cluster, requests, precision)
    changes = () if best.fits else tuple(_helpful(cluster, requests, precision, tried))
    short = int((best.peak_bytes - cluster.memory_bytes).argmax())
    have = int(cluster.memory_bytes[short])
    return Fit(best.fits, int(best.peak_bytes[short]), have, best.value, _ranked(changes))


def _ranked(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """What keeps the answers and the hardware as they are comes first, then by time."""
    return tuple(sorted(changes, key=lambda change: (_sacrifice(change.what), change.request_ns)))


def _sacrifice(what: str) -> int:
    return next(
        (rank for rank, word in enumerate(("host", "smaller", "shorter", "int8", "int4", "more")) if word in what), 0
    )


def _helpful(
    cluster: Cluster,
    requests: Requests,
    precision: str,
    tried: Callable[[Cluster, Requests, str], tuple[Service, Placement]],
) -> Iterator[Change]:
    """Changes after which a plan was found that fits; no other is ever told."""
    for what, command, on, asked, dtype in _candidates(cluster, requests, precision):
        _, placement = tried(on, asked, dtype)
        if placement.fits:
            yield Change(what, command, placement.value, int(placement.peak_bytes.max()))


def _candidates(
    cluster: Cluster, requests: Requests, precision: str
) -> Iterator[tuple[str, str, Cluster, Requests, str]]:
    if not any(device.kind.startswith("cpu") for device in cluster.devices):
        on = with_host(cluster)
        yield "weights in host memory, streamed or computed there", f"--on {cluster.name}+cpu", on, requests, precision
    for batch in _halves(requests.batch):
        asked = replace(requests, batch=batch)
        yield f"a smaller batch of {batch}", f"--serve {asked}", cluster, asked, precision
    for prompt in _halves(requests.prompt)[:4]:
        asked = replace(requests, prompt=prompt)
        yield f"a shorter prompt of {prompt}", f"--serve {asked}", cluster, asked, precision
    for dtype in ("int8", "int4"):
        if precision not in ("int8", "int4") or (precision == "int8" and dtype == "int4"):
            yield f"weights as {dtype}", f"--weights {dtype}", cluster, requests, dtype
    for count in (1, 3):
        on = with_more(cluster, count)
        yield (
            f"{count} more device{'s' if count > 1 else ''} like '{on.devices[-1].kind}'",
            "--on",
            on,
            requests,
            precision,
        )


def _halves(number: int) -> list[int]:
    found = []
    while number > 1:
        number //= 2
        found.append(number)
    return found


def one_device(memory_bytes: int, like: Device) -> Cluster:
    """A cluster of one device of that memory, for people who know no more than that."""
    device = replace(like, name="gpu:0", memory_bytes=memory_bytes)
    return Cluster(f"{memory_bytes / 2**30:g}GiB", (device,), {}, ints([[-1]]))


def with_host(cluster: Cluster) -> Cluster:
    """The cluster with a host behind PCIe."""
    return _joined(cluster, replace(HOST, name="cpu:0"), f"{cluster.name}+cpu")


def with_more(cluster: Cluster, count: int) -> Cluster:
    """The cluster with more devices like its first, behind PCIe."""
    first = cluster.devices[0]
    for i in range(count):
        cluster = _joined(cluster, replace(first, name=f"{first.kind}:more{i}"), cluster.name)
    return cluster


def _joined(cluster: Cluster, device: Device, name: str) -> Cluster:
    import numpy as np

    from loadmaster.cluster.cluster import dense_channels

    count = cluster.num_devices
    links = dict(cluster.links)
    channel = np.full((count + 1, count + 1), -1, np.int64)
    channel[:count, :count] = cluster.channel
    top = int(cluster.channel.max(initial=-1)) + 1
    for other in range(count):
        links[other, count] = links[count, other] = PCIE4
        channel[other, count], channel[count, other] = top + 2 * other, top + 2 * other + 1
    return Cluster(name, (*cluster.devices, device), links, dense_channels(ints(channel)), cluster.op_ns)
