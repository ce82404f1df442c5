"""Eight tiny graphs with given times, each drawn, and the two-device cluster they are run on by hand.

In the drawings a number before an op is its time in ns, a number on an arrow is bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints


def pair(memory_bytes: int = 2**30, launch_ns: int = 0, link: Link | None = None) -> Cluster:
    """d0 and d1, 1 flop and 1 byte per ns; both links 5 ns + 10 bytes per ns unless told; a channel per pair."""
    device = Device("d0", "toy", memory_bytes, 1e9, 1e9, launch_ns)
    wire = link or Link(1e10, 5)
    links = {(0, 1): wire, (1, 0): wire}
    return Cluster("pair", (device, replace(device, name="d1")), links, ints([[-1, 0], [1, -1]]))


def chain() -> Graph:
    #  x --8--> 10 a --100--> 20 b --50--> 5 c --8--> out
    g = GraphBuilder("chain")
    x, a, b, out = g.tensor(8, "input"), g.tensor(100), g.tensor(50), g.tensor(8, "output")
    g.op("a", "any", [x], [a], time_ns=10)
    g.op("b", "any", [a], [b], time_ns=20)
    g.op("c", "any", [b], [out], time_ns=5)
    return g.build()


def diamond() -> Graph:
    #            ┌-100-> 20 b -50-┐
    #  10 a -----┤                ├--> 10 d --8--> out      (the worked example of the rules)
    #            └-100-> 30 c -40-┘
    g = GraphBuilder("diamond")
    a, b, c, out = g.tensor(100), g.tensor(50), g.tensor(40), g.tensor(8, "output")
    g.op("a", "any", [], [a], time_ns=10)
    g.op("b", "any", [a], [b], time_ns=20)
    g.op("c", "any", [a], [c], time_ns=30)
    g.op("d", "any", [b, c], [out], time_ns=10)
    return g.build()


def fork() -> Graph:
    #            ┌-60-> 10 b --1--> out
    #  10 a -----┼-60-> 10 c --2--> out
    #            └-30-> 10 d --3--> out      (a makes two tensors, and a third that nobody reads: 7)
    g = GraphBuilder("fork")
    big, small, unread = g.tensor(60), g.tensor(30), g.tensor(7)
    g.op("a", "any", [], [big, small, unread], time_ns=10)
    for name, read, size in (("b", big, 1), ("c", big, 2), ("d", small, 3)):
        g.op(name, "any", [read], [g.tensor(size, "output")], time_ns=10)
    return g.build()


def join() -> Graph:
    #  10 a -10-┐
    #  20 b -20-┼--> 5 d --4--> out      (d also comes after e, 40 ns, which makes nothing; d's workspace: 64)
    #  30 c -30-┘
    g = GraphBuilder("join")
    parts = [g.tensor(10), g.tensor(20), g.tensor(30)]
    for name, part, time_ns in zip("abc", parts, (10, 20, 30), strict=True):
        g.op(name, "any", [], [part], time_ns=time_ns)
    g.op("e", "any", time_ns=40)
    g.op("d", "any", parts, [g.tensor(4, "output")], time_ns=5, after=["e"], workspace_bytes=64)
    return g.build()


def ladder() -> Graph:
    #  x --> 10 f1 --100--> 10 f2 --100--> 10 f3 --8--> loss
    #           |              |              |
    #          100            100            100      (what forward kept, read again backward)
    #           v              v              v
    #  g1 <-- 20 b1 <--50-- 20 b2 <--50-- 20 b3
    g = GraphBuilder("ladder")
    x, loss, kept, grad = g.tensor(8, "input"), g.tensor(8, "output"), [], []
    before = x
    for index in (1, 2, 3):
        kept.append(g.tensor(100))
        g.op(f"f{index}", "any", [before], [kept[-1]] + ([loss] if index == 3 else []), time_ns=10)
        before = kept[-1]
    for index in (3, 2, 1):
        grad.append(g.tensor(50, "output" if index == 1 else "activation"))
        g.op(f"b{index}", "any", [kept[index - 1], *grad[-2:-1]], [grad[-1]], time_ns=20)
    return g.build()


def shared_weight() -> Graph:
    #         w (200, updated by u: lives with u, sent to whoever else reads it)
    #       ┌-┴----┐
    #  x -> 10 a   10 b <- x
    #        40     40
    #         └-> 15 u -> w'        (after a and b, so that both read the old w)
    g = GraphBuilder("shared weight")
    w, x = g.tensor(200, "weight"), g.tensor(16, "input")
    left, right, new = g.tensor(40), g.tensor(40), g.tensor(200, "state", alias_of=w)
    g.op("a", "any", [w, x], [left], time_ns=10)
    g.op("b", "any", [w, x], [right], time_ns=10)
    g.op("u", "any", [w, left, right], [new], time_ns=15, after=["a", "b"])
    return g.build()


def views() -> Graph:
    #            ┌-view v (50 of 100)-> 10 b --20--> ┐
    #  10 a -100-┤                                   ├ 10 d --8--> out
    #            └-view of a view of a-> 10 c --20-> ┘         (folded: b and c read a itself)
    g = GraphBuilder("views")
    a, b, c, out = g.tensor(100), g.tensor(20), g.tensor(20), g.tensor(8, "output")
    half = g.tensor(50, alias_of=a)
    row = g.tensor(25, alias_of=half)
    g.op("a", "any", [], [a], time_ns=10)
    g.op("half", "view", [a], [half])
    g.op("row", "view", [half], [row])
    g.op("b", "any", [half], [b], time_ns=10)
    g.op("c", "any", [row], [c], time_ns=10)
    g.op("d", "any", [b, c], [out], time_ns=10)
    return g.build()


def zero_time() -> Graph:
    #  0 a --100--> 0 b --100--> 0 c --100--> 10 d --8--> out      (b also makes 30 that nobody reads)
    g = GraphBuilder("zero time")
    a, b, c, unread, out = g.tensor(100), g.tensor(100), g.tensor(100), g.tensor(30), g.tensor(8, "output")
    g.op("a", "any", [], [a], time_ns=0)
    g.op("b", "any", [a], [b, unread], time_ns=0)
    g.op("c", "any", [b], [c], time_ns=0)
    g.op("d", "any", [c], [out], time_ns=10)
    return g.build()


GRAPHS: dict[str, Callable[[], Graph]] = {
    "chain": chain,
    "diamond": diamond,
    "fork": fork,
    "join": join,
    "ladder": ladder,
    "shared_weight": shared_weight,
    "views": views,
    "zero_time": zero_time,
}
