"""Compiled loops behind static addresses: rounds of a timeline, and blocks packed into an arena.

`pack` is first fit in a given order, quadratic in the blocks; it counts comparisons, so that a search that packs again
and again can be limited by them and equal input gives equal addresses anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole

FAR = np.iinfo(np.int64).max // 4


class Steps(NamedTuple):
    """A simulated step as columns; sends are in order of dispatch.

    Attributes:
        by_turn: [ops] in order of dispatch.
        send_maker: [sends] op to wait for, or -1.
        waits: what op i waits for: an op, or ops + a send.
    """

    device: np.ndarray  # [ops]
    start_ns: np.ndarray  # [ops]
    end_ns: np.ndarray  # [ops]
    by_turn: np.ndarray  # [ops]
    send_maker: np.ndarray  # [sends]
    send_channel: np.ndarray  # [sends]
    send_start_ns: np.ndarray  # [sends]
    send_end_ns: np.ndarray  # [sends]
    wait_start: np.ndarray  # [ops + 1]
    waits: np.ndarray


@compiled(inline="always")
def _no_sooner(now: Whole, ns: Whole, round_: Whole, least: Whole) -> Whole:
    return max(least, round_) if ns == now else least


@compiled
def rounds(steps: Steps, devices: Whole, channels: Whole) -> tuple[Ints, Ints]:
    """(round in which each op, then each send, starts; round in which it ends), within their instants.

    What starts does so in the first round in which its device or channel is free and all it waits for has ended:
    neither ever idles with something ready (rules 3, 4 and 11), and the timeline says what came next on each.
    """
    ops, sends = len(steps.device), len(steps.send_maker)
    begun, ended = np.full(ops + sends, -1, np.int64), np.full(ops + sends, -1, np.int64)
    end_ns = np.concatenate((steps.end_ns, steps.send_end_ns))
    last = np.full(devices + channels, -1, np.int64)  # what each device and channel ran last
    turn, sent = 0, 0
    while turn < ops or sent < sends:
        moved = False
        while sent < sends:
            maker, now = steps.send_maker[sent], steps.send_start_ns[sent]
            if maker >= 0 and ended[maker] < 0:
                break
            at = devices + steps.send_channel[sent]
            least = np.int64(0) if maker < 0 else _no_sooner(now, end_ns[maker], ended[maker], np.int64(0))
            if last[at] >= 0:
                least = _no_sooner(now, end_ns[last[at]], ended[last[at]], least)
            begun[ops + sent] = least
            ended[ops + sent] = least + 1 if steps.send_end_ns[sent] == now else 0
            last[at] = ops + sent
            sent += 1
            moved = True
        while turn < ops:
            op = steps.by_turn[turn]
            now, least, known = steps.start_ns[op], np.int64(0), True
            for at in range(steps.wait_start[op], steps.wait_start[op + 1]):
                item = steps.waits[at]
                if ended[item] < 0:
                    known = False
                    break
                least = _no_sooner(now, end_ns[item], ended[item], least)
            if not known:
                break
            if last[steps.device[op]] >= 0:
                item = last[steps.device[op]]
                least = _no_sooner(now, end_ns[item], ended[item], least)
            begun[op] = least
            ended[op] = least + 1 if steps.end_ns[op] == now else 0
            last[steps.device[op]] = op
            turn += 1
            moved = True
        if not moved:
            break
    return begun, ended


@compiled
def pack(order: Ints, begin: Ints, end: Ints, size: Ints, most: Whole) -> tuple[Ints, Whole, Whole]:
    """(offsets, arena bytes, work): each block in turn at the lowest address free during its whole life.

    Gives up, with arena bytes `most`, once the arena would reach `most`.
    """
    work: Whole
    count = len(order)
    offset = np.zeros(len(size), np.int64)
    low, high = np.empty(count, np.int64), np.empty(count, np.int64)  # addresses of placed blocks, lowest first
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)  # and their lives
    top, work = np.int64(0), 0
    for placed in range(count):
        block = order[placed]
        here, since, until = np.int64(0), begin[block], end[block]
        spot = 0
        while spot < placed:
            if first[spot] < until and since < last[spot]:
                if low[spot] - here >= size[block]:
                    break
                here = max(here, high[spot])
            spot += 1
        work += spot + 1
        offset[block] = here
        top = max(top, here + size[block])
        if top >= most:
            return offset, most, work
        into = np.searchsorted(low[:placed], here)
        for move in range(placed, into, -1):
            low[move], high[move] = low[move - 1], high[move - 1]
            first[move], last[move] = first[move - 1], last[move - 1]
        work += (placed - into) // 4
        low[into], high[into], first[into], last[into] = here, here + size[block], since, until
    return offset, top, work
