"""The rules of simulate.py about memory (7 to 9), by hand."""

from __future__ import annotations

from loadmaster.cluster import Link
from loadmaster.graph import GraphBuilder
from tests.graphs import pair
from tests.unit.simulator.by_hand import curve, run, sends, spans


def test_rule_7_a_weight_nobody_updates_is_wherever_it_is_read() -> None:
    g = GraphBuilder()
    w, unread = g.tensor(100, "weight"), g.tensor(1000, "weight")
    g.op("a", "any", [w], time_ns=10)
    g.op("b", "any", [w], time_ns=10)
    g.op("c", "any", [w], time_ns=10)
    line = run(g, [0, 0, 1])
    assert line.num_sends == 0 and line.step_ns == 20
    assert curve(line, 0) == [(0, 100)] and curve(line, 1) == [(0, 100)]
    assert unread not in line.send_tensor


def test_rule_7_an_updated_weight_lives_with_its_update_and_is_sent_once_to_others() -> None:
    g = GraphBuilder()
    w = g.tensor(100, "weight")
    new = g.tensor(100, "weight", alias_of=w)
    g.op("a", "any", [w], time_ns=10)
    g.op("b", "any", [w], time_ns=10)
    g.op("update", "any", [w], [new], time_ns=5, after=["a", "b"])
    line = run(g, [0, 0, 1])
    assert sends(line) == [(0, 0, 0, 15)]  # from time 0 on
    assert spans(line) == [(15, 25), (25, 35), (35, 40)]
    assert curve(line, 0) == [(0, 0), (0, 100), (35, 0)]
    assert curve(line, 1) == [(0, 100)]


def test_rule_7_an_update_that_nobody_else_reads_still_keeps_the_weight() -> None:
    g = GraphBuilder()
    w = g.tensor(100, "state")
    g.op("update", "any", [], [g.tensor(100, "state", alias_of=w)], time_ns=5)
    assert curve(run(g, [1]), 1) == [(0, 100)]


def test_rule_8_a_made_tensor_lives_from_its_op_to_its_last_reader_and_send() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("here", "any", [x], time_ns=3)
    g.op("there", "any", [x], time_ns=20)
    line = run(g, [0, 0, 1])  # sent 10 to 25, read here until 13
    assert curve(line, 0) == [(0, 0), (0, 100), (25, 0)]
    assert curve(line, 1) == [(0, 0), (10, 100), (45, 0)]
    line = run(g, [0, 0, 1], pair(link=Link(None, 1)))  # sent 10 to 11
    assert curve(line, 0) == [(0, 0), (0, 100), (13, 0)]


def test_rule_8_unread_dies_with_its_op_and_an_output_never() -> None:
    g = GraphBuilder()
    g.op("make", "any", [], [g.tensor(1), g.tensor(10, "output"), g.tensor(100, "state")], time_ns=10)
    assert curve(run(g, [0]), 0) == [(0, 0), (0, 111), (10, 110)]


def test_rule_8_a_copy_of_an_output_dies_with_its_last_reader() -> None:
    g = GraphBuilder()
    x = g.tensor(100, "output")
    g.op("make", "any", [], [x], time_ns=10)
    g.op("there", "any", [x], time_ns=20)
    line = run(g, [0, 1])
    assert curve(line, 0) == [(0, 0), (0, 100)]
    assert curve(line, 1) == [(0, 0), (10, 100), (45, 0)]


def test_rule_8_an_update_in_place_has_no_bytes_and_keeps_its_base() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    over = g.tensor(100, alias_of=x)
    twice = g.tensor(100, alias_of=over)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("over", "any", [x], [over], time_ns=10)
    g.op("twice", "any", [over], [twice], time_ns=10)
    g.op("read", "any", [twice], time_ns=10)
    assert curve(run(g, [0, 0, 0, 0]), 0) == [(0, 0), (0, 100), (40, 0)]


def test_rule_8_an_update_of_a_received_copy_keeps_the_copy() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    over = g.tensor(100, alias_of=x)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("over", "any", [x], [over], time_ns=10)
    g.op("back", "any", [over], time_ns=10)
    g.op("late", "any", time_ns=200)
    # x goes over 10 to 25 and is overwritten there; the new value comes back 35 to 50 at the full 100 bytes and
    # waits for the long op to end.
    line = run(g, [0, 1, 0, 0])
    assert sends(line) == [(0, 1, 10, 25), (1, 0, 35, 50)]
    assert curve(line, 1) == [(0, 0), (10, 100), (50, 0)]
    assert curve(line, 0) == [(0, 0), (0, 100), (25, 0), (35, 100), (220, 0)]


def test_rule_8_an_output_written_in_place_keeps_its_base_to_the_end() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("over", "any", [x], [g.tensor(100, "output", alias_of=x)], time_ns=10)
    line = run(g, [0, 1])
    assert curve(line, 0) == [(0, 0), (0, 100), (25, 0)]
    assert curve(line, 1) == [(0, 0), (10, 100)]


def test_rule_8_workspace_lives_while_its_op_runs() -> None:
    g = GraphBuilder()
    g.op("a", "any", time_ns=10, workspace_bytes=64)
    g.op("b", "any", time_ns=10)
    assert curve(run(g, [0, 0]), 0) == [(0, 0), (0, 64), (10, 0)]


def test_rule_9_things_of_no_length_count() -> None:
    g = GraphBuilder()
    g.op("flash", "any", [], [g.tensor(70)], time_ns=0, workspace_bytes=7)
    line = run(g, [0])
    assert line.step_ns == 0 and line.peak_bytes.tolist() == [77, 0]


def test_rule_9_over_bytes_are_summed_over_devices() -> None:
    g = GraphBuilder()
    g.op("a", "any", [], [g.tensor(130)], time_ns=1)
    g.op("b", "any", [], [g.tensor(120)], time_ns=1)
    assert run(g, [0, 1], pair(memory_bytes=100)).over_bytes == 50
    assert run(g, [0, 0], pair(memory_bytes=100)).over_bytes == 30  # one after the other
