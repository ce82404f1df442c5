"""Facts of tiny graphs, counted by hand."""

from loadmaster import GraphBuilder, price
from loadmaster.report.inspection import inspect_problem
from tests.graphs.tiny import diamond, pair, views


def test_diamond():
    found = inspect_problem(price(diamond(), pair()))
    # a 10, b 20, c 30, d 10: work 70; a c d is the longest chain
    assert (found.work_ns, found.critical_path_ns, found.critical_path_ops) == (70, 50, 3)
    assert found.parallelism == 70 / 50
    assert found.bytes_by_role == {"activation": 190, "weight": 0, "input": 0, "output": 8, "state": 0}
    assert [tensor.nbytes for tensor in found.largest_tensors] == [100, 50, 40, 8]
    assert [tensor.made_by for tensor in found.largest_tensors] == ["a", "b", "c", "d"]
    assert (found.ops, found.views, found.tensors) == (4, 0, 4)


def test_views_are_counted_apart_and_own_no_bytes():
    graph = views()
    found = inspect_problem(price(graph, pair()))
    names = [name for name, view in zip(graph.op_name, graph.is_view, strict=True) if view]
    assert found.views == len(names) > 0
    owned = sum(int(size) for size, alias in zip(graph.nbytes, graph.alias_of, strict=True) if alias < 0)
    assert sum(found.bytes_by_role.values()) == owned


def test_kinds_add_up():
    graph = GraphBuilder("kinds")
    for index in range(3):
        graph.op(f"mm{index}", "mm", [], [graph.tensor(8)], flops=100, time_ns=50)
    graph.op("relu", "relu", [], [graph.tensor(8)], flops=1, time_ns=400)
    found = inspect_problem(price(graph.build(), pair()))
    assert [(kind.kind, kind.ops, kind.flops, kind.time_ns) for kind in found.kinds] == [
        ("relu", 1, 1, 400),
        ("mm", 3, 300, 150),
    ]
    assert found.flops == 301


def test_as_data_is_plain():
    import json

    data = json.loads(json.dumps(inspect_problem(price(diamond(), pair())).as_data()))
    assert data["critical_path_ns"] == 50
    assert data["parallelism"] == 1.4
