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
        dispatch_ns: [ops] what the host needs to ask for each; empty where nobody waits for a host.
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
    dispatch_ns: np.ndarray  # [ops]


@compiled(inline="always")
def _no_sooner(now: Whole, ns: Whole, round_: Whole, least: Whole) -> Whole:
    return max(least, round_) if ns == now else least


@compiled
def _asked(by_turn: Ints, dispatch_ns: Ints) -> tuple[Ints, Ints, Ints]:
    """[ops] (when the host has asked for each, the round in which it begins to, and the one in which it has): one after
    the other, without a pause (rule 14)."""
    ops = len(dispatch_ns)
    end_ns, begun, ended = np.empty(ops, np.int64), np.empty(ops, np.int64), np.empty(ops, np.int64)
    now, round_ = np.int64(0), np.int64(0)
    for turn in range(ops):
        op = by_turn[turn]
        begun[op] = round_
        now, round_ = now + dispatch_ns[op], round_ + 1 if dispatch_ns[op] == 0 else np.int64(0)
        end_ns[op], ended[op] = now, round_
    return end_ns, begun, ended


@compiled
def rounds(steps: Steps, devices: Whole, channels: Whole) -> tuple[Ints, Ints, Ints]:
    """(round in which each op, then each send, then each asking of the host starts; round in which it ends; when the
    host has asked for each op), within their instants.

    What starts does so in the first round in which its device or channel is free and all it waits for has ended:
    neither ever idles with something ready (rules 3, 4 and 11), and the timeline says what came next on each.
    """
    ops, sends = len(steps.device), len(steps.send_maker)
    begun, ended = np.full(ops + sends, -1, np.int64), np.full(ops + sends, -1, np.int64)
    asked_ns, asking, asked = _asked(steps.by_turn, steps.dispatch_ns)
    end_ns = np.concatenate((steps.end_ns, steps.send_end_ns))
    last = np.full(devices + channels, -1, np.int64)  # what each device and channel ran last
    # Devices and channels whose next one waits for what is not known yet. Where a host asks, they do not start in the
    # order in which they were asked.
    held, hosted = np.empty(devices + channels, np.bool_), len(asked) > 0
    turn, sent, moved = 0, 0, True
    while moved and (turn < ops or sent < sends):
        moved = False
        held[:] = False
        for send in range(sent, sends):
            maker, now, at = steps.send_maker[send], steps.send_start_ns[send], devices + steps.send_channel[send]
            if begun[ops + send] >= 0 or held[at]:
                continue
            if maker >= 0 and ended[maker] < 0:
                held[at] = True
                if not hosted:
                    break
                continue
            least = np.int64(0) if maker < 0 else _no_sooner(now, end_ns[maker], ended[maker], np.int64(0))
            if last[at] >= 0:
                least = _no_sooner(now, end_ns[last[at]], ended[last[at]], least)
            begun[ops + send] = least
            ended[ops + send] = least + 1 if steps.send_end_ns[send] == now else 0
            last[at] = ops + send
            moved = True
        while sent < sends and begun[ops + sent] >= 0:
            sent += 1
        for place in range(turn, ops):
            op = steps.by_turn[place]
            device = steps.device[op]
            if begun[op] >= 0 or held[device]:
                continue
            now, least, known = steps.start_ns[op], np.int64(0), True
            for at in range(steps.wait_start[op], steps.wait_start[op + 1]):
                item = steps.waits[at]
                if ended[item] < 0:
                    known = False
                    break
                least = _no_sooner(now, end_ns[item], ended[item], least)
            if not known:
                held[device] = True
                if not hosted:
                    break
                continue
            if last[device] >= 0:
                item = last[device]
                least = _no_sooner(now, end_ns[item], ended[item], least)
            if hosted:
                least = _no_sooner(now, asked_ns[op], asked[op], least)
            begun[op] = least
            ended[op] = least + 1 if steps.end_ns[op] == now else 0
            last[device] = op
            moved = True
        while turn < ops and begun[steps.by_turn[turn]] >= 0:
            turn += 1
    return np.concatenate((begun, asking)), np.concatenate((ended, asked)), asked_ns


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
