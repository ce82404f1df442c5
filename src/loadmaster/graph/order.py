"""Compiled walks over a dependency graph: arrays in, arrays out.

Dependencies come as a ragged column (start, before): row i waits for before[start[i]:start[i + 1]]. Each walk takes
time linear in that, the topological order a logarithm more for its heap. They are called by plans, list schedulers and
bounds, from Python and from other compiled loops; sorting is here because it compiles quicker than numpy's.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole


@compiled
def followers(start: Ints, before: Ints) -> tuple[Ints, Ints]:
    """(start, before) read the other way: for each row, the rows that wait for it."""
    count = len(start) - 1
    follow_start = np.zeros(count + 1, np.int64)
    for earlier in before:
        follow_start[earlier + 1] += 1
    for row in range(count):
        follow_start[row + 1] += follow_start[row]
    fill = follow_start[:-1].copy()
    follow = np.empty(len(before), np.int64)
    for row in range(count):
        for at in range(start[row], start[row + 1]):
            follow[fill[before[at]]] = row
            fill[before[at]] += 1
    return follow_start, follow


@compiled
def topological_order(start: Ints, before: Ints, key: Ints) -> Ints:
    """Rows of (start, before) so that each comes after those it waits for; lowest key first among the ready.

    Shorter than the number of rows when there is a cycle.
    """
    count = len(start) - 1
    follow_start, follow = followers(start, before)
    left = np.empty(count, np.int64)
    for row in range(count):  # np.diff takes two seconds to compile
        left[row] = start[row + 1] - start[row]
    heap = np.empty(count, np.int64)
    size = 0
    for row in range(count):
        if left[row] == 0:
            size = _push(heap, size, row, key)
    order = np.empty(count, np.int64)
    done = 0
    while size:
        row = heap[0]
        size = _pop(heap, size, key)
        order[done] = row
        done += 1
        for at in range(follow_start[row], follow_start[row + 1]):
            later = follow[at]
            left[later] -= 1
            if left[later] == 0:
                size = _push(heap, size, later, key)
    return order[:done]


@compiled(inline="always")
def _push(heap: Ints, size: int, row: int, key: Ints) -> int:
    here = size
    while here > 0:
        parent = (here - 1) >> 1
        if key[heap[parent]] <= key[row]:
            break
        heap[here] = heap[parent]
        here = parent
    heap[here] = row
    return size + 1


@compiled(inline="always")
def _pop(heap: Ints, size: int, key: Ints) -> int:
    size -= 1
    row = heap[size]
    here = 0
    while True:
        child = 2 * here + 1
        if child >= size:
            break
        if child + 1 < size and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= key[row]:
            break
        heap[here] = heap[child]
        here = child
    heap[here] = row
    return size


@compiled
def longest_path_to(start: Ints, before: Ints, weight: Ints) -> Ints:
    """[rows] the heaviest chain of rows that ends with each; rows are in topological order."""
    reach = np.zeros(len(weight), np.int64)
    for row in range(len(weight)):
        longest = 0
        for at in range(start[row], start[row + 1]):
            longest = max(longest, reach[before[at]])
        reach[row] = longest + weight[row]
    return reach


@compiled(_nrt=False)
def sort_by(key: Ints, items: Ints, count: Whole, spare: Ints) -> None:
    """Sorts so many items by their keys, lowest first; equal ones keep their order. A merge sort from short runs up: it
    compiles in a tenth of the time that np.argsort takes."""
    width = 1
    while width < count:
        for low in range(0, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            left, right = low, middle
            for at in range(low, high):
                if left < middle and (right >= high or key[items[left]] <= key[items[right]]):
                    spare[at] = items[left]
                    left += 1
                else:
                    spare[at] = items[right]
                    right += 1
        for at in range(count):
            items[at] = spare[at]
        width *= 2
