"""Plans over several processes: random plans of every kind against the module, and what happens when one dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.end_to_end import warm

ROOT = Path(__file__).parents[3]

# Random placements, ranks, kernels and sends: nothing settled, nothing sensible.
RANDOM_PLANS = """
import sys, numpy as np, torch
from dataclasses import replace
from loadmaster.graph.columns import ints
from loadmaster.cost import price
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan, check
from loadmaster.runtime.apply import build, planning_of, stand_in_cluster
from loadmaster.runtime.verify import verify_step
from tests.unit.importers.torch.models import IMAGES, WORDS, ConvNet, Transformer

def plan_of(problem, rng):
    count, devices = problem.num_ops, problem.num_devices
    device, kernel = rng.integers(0, devices, count), np.arange(count)
    for group in set(problem.graph.colocate.tolist()) - {-1}:
        device[problem.graph.colocate == group] = rng.integers(0, devices)
    rank = rng.integers(0, 5, count) if rng.random() < 0.5 else rng.permutation(count)
    plan = Plan.of(problem, device, rank, kernel)
    if rng.random() < 0.7:
        sends = rng.integers(-1, 4, (problem.graph.num_tensors, devices))
        plan = replace(plan, send_rank=ints(sends))
    check(plan, problem)
    return plan

torch.manual_seed(0)
torch.set_num_threads(1)
for module, inputs, training in ((Transformer(), (WORDS,), True), (ConvNet(True), (IMAGES,), False)):
    captured = capture_step(module, inputs, training=training)
    problem = price(captured.graph, stand_in_cluster(int(sys.argv[1])))
    rng = np.random.default_rng(7)
    for _ in range(4):
        step = build(module, captured, planning_of(captured, plan_of(problem, rng)))
        found = verify_step(step, inputs)
        assert found.equals_module and found.ok, found
        step(*inputs)
        step.detach()
print("all equal", flush=True)
"""

# Weights and state live with the second process and come to the first, which has all ops; three steps, then training by
# torch itself.
FROM_ELSEWHERE = """
import copy, torch
import loadmaster as lm
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import loss_of
from loadmaster.runtime.apply import apply
from loadmaster.runtime.verify import verify_step
from tests.unit.importers.torch.models import WORDS, Transformer
from tests.unit.runtime.test_additions import CountingCopies, living_elsewhere, planned

torch.manual_seed(0)
torch.set_num_threads(1)
for training, every in ((True, 1), (True, 3), (False, 1)):
    module = Transformer(dropout=0.0).train(training)
    twin = copy.deepcopy(module)
    base = lm.price(capture_step(module, (WORDS,), training=training).graph, "2xp100-pcie")
    step = apply(module, (WORDS,), planned(base, living_elsewhere(base, every)), verify=False)
    assert step.program.lodged
    found = verify_step(step, (WORDS,))
    assert found.equals_module and found.ok, str(found)
    with CountingCopies() as counted, torch.set_grad_enabled(training):
        mine = [step(WORDS) for _ in range(3)]
    homes = [value.data_ptr() for value in (*module.parameters(), *step.updates.state())]
    assert not any(counted.into.get(place, 0) for place in homes), "what returns is received where it lives"
    step.detach()
    optimizer = torch.optim.Adam(twin.parameters(), fused=True)
    for one in mine:
        with torch.set_grad_enabled(training):
            theirs = loss_of(twin(WORDS), "twin") if training else twin(WORDS)
        assert torch.equal(one, theirs)
        if training:
            optimizer.zero_grad()
            theirs.backward()
            optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), twin.parameters()))
print("all equal", flush=True)
"""

# The second process ends in the middle of a step.
ONE_DIES = """
import os, torch
from loadmaster.cost import price
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan
from loadmaster.runtime.apply import build, planning_of, stand_in_cluster
from tests.unit.importers.torch.models import Mlp
module, inputs = Mlp(), (torch.ones(8, 16),)
captured = capture_step(module, inputs, training=False)
problem = price(captured.graph, stand_in_cluster(2))
step = build(module, captured, planning_of(captured, Plan.of(problem, [1] + [0] * (problem.num_ops - 1))))
step(*inputs)
if os.environ["RANK"] == "1":
    os._exit(7)
step(*inputs)
"""


RUN_PLANS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from loadmaster.runtime.running import run_plan
torch.set_num_threads(1)
for plan in sys.argv[3:]:
    ran = run_plan(sys.argv[2], plan, verify=True, steps=1)
    print("ran" if ran is None else ran.verification, flush=True)
"""


def verified_in_processes(model: str, folder: Path, plans: Sequence[Path], count: int) -> int:
    """How many of the plans equal the captured step in every bit, in so many processes; the folder has the model."""
    ended = processes(RUN_PLANS, count, str(folder), model, *map(str, plans))
    for one in ended:
        assert one.returncode == 0, one.stderr
    return ended[0].stdout.count("equal to the captured step in every bit")


def processes(text: str, count: int, *args: str) -> list[subprocess.CompletedProcess[str]]:
    """So many processes beside each other, forks of one that has imported what they need."""
    return warm.run_beside(text, args, environments(count))


def fresh_processes(text: str, count: int) -> list[subprocess.CompletedProcess[str]]:
    """The same, each started by itself, as a user starts them."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env={**os.environ, **environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments(count)
    ]
    ended = []
    try:
        for one in started:
            out, err = one.communicate(timeout=600)
            ended.append(subprocess.CompletedProcess(one.args, one.returncode, out, err))
    finally:
        for one in started:
            one.kill()
    return ended


def environments(count: int) -> list[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    return [{**shared, "RANK": str(rank)} for rank in range(count)]


def test_any_plan_gives_the_module_and_never_hangs() -> None:
    for ended in processes(RANDOM_PLANS, 3, "3"):
        assert ended.returncode == 0 and "all equal" in ended.stdout, ended.stderr


def test_weights_and_state_that_live_with_another_process() -> None:
    for ended in processes(FROM_ELSEWHERE, 2):
        assert ended.returncode == 0 and "all equal" in ended.stdout, ended.stderr


def test_a_process_that_dies_is_told_by_the_others() -> None:
    first, second = fresh_processes(ONE_DIES, 2)
    assert second.returncode == 7
    assert first.returncode == 1 and "is gone or does not answer" in first.stderr


def test_as_many_processes_as_devices() -> None:
    text = ONE_DIES.replace("stand_in_cluster(2)", "stand_in_cluster(3)")
    for ended in processes(text.replace("[0] *", "[2] *"), 2):
        assert ended.returncode == 1 and "2 processes were started for a plan on 3 devices" in ended.stderr


def test_each_process_has_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from loadmaster.runtime.processes import Post, own_place

    cpu, gpus = torch.device("cpu"), [torch.device("cuda", number) for number in range(4)]
    assert [own_place([False, False, True], rank) for rank in range(3)] == [cpu] * 3  # no GPU here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    found = []
    for rank in range(6):  # of two machines
        monkeypatch.setenv("LOCAL_RANK", str(rank % 3))
        found.append(own_place([False, True, False, True, False, False], rank))
    assert found == [gpus[0], cpu, gpus[1], cpu, gpus[0], gpus[1]]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_place([False] * 8, 1) == cpu
    post = Post(1, (gpus[0], gpus[1], cpu))
    assert post.mixed and post.wire(0) == gpus[1] and post.wire(2) == cpu
    assert Post(2, (gpus[0], gpus[1], cpu)).wire(0) == cpu


def test_one_process_has_no_gpu_and_so_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from loadmaster.cluster import Cluster
    from loadmaster.errors import InvalidSetting
    from loadmaster.runtime import processes

    def gathered(into: list[str], own: str) -> None:
        into[:] = [own, "cpu", *others]

    monkeypatch.setattr(processes.dist, "all_gather_object", gathered)
    monkeypatch.setattr(processes, "own_place", lambda hosts, rank: torch.device("cuda", 0))
    others = ["cuda:1"]
    found = processes.places_of_ranks(Cluster.preset("1xh200+cpu+1xh200"), None, 0)
    assert list(map(str, found)) == ["cuda:0", "cpu", "cuda:1"]
    others = ["cpu"]
    found = processes.places_of_ranks(Cluster.preset("1xh200+cpu+1xh200"), None, 0)
    assert list(map(str, found)) == ["cpu"] * 3
    given = processes.places_of_ranks(Cluster.preset("1xh200+cpu"), ["cuda:0", "cpu"], 1)  # whoever has it looks
    assert list(map(str, given)) == ["cuda:0", "cpu"]
    with pytest.raises(InvalidSetting, match="1 torch devices were given for a plan on 2"):
        processes.places_of_ranks(Cluster.preset("1xh200+cpu"), ["cpu"], 1)


# Each process applies a plan of its own of one model: the second has another order, and in the other text none.
OTHER_PLANS = """
import datetime, os, sys, time, torch
from loadmaster.cost import price
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan
from loadmaster.runtime import processes
from loadmaster.runtime.apply import build, planning_of, stand_in_cluster
from tests.unit.importers.torch.models import Mlp
if sys.argv[1:] == ["late"]:
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
torch.manual_seed(0)
module, rank = Mlp(), int(os.environ["RANK"])
captured = capture_step(module, (torch.ones(8, 16),), training=False)
problem = price(captured.graph, stand_in_cluster(2))
if sys.argv[1:] == ["late"] and rank == 1:
    processes.joined_group(2)
    time.sleep(6)
    sys.exit(3)
device = [rank] + [1 - rank] * (problem.num_ops - 1)
build(module, captured, planning_of(captured, Plan.of(problem, device)))
"""


def test_processes_with_other_plans_say_so_at_once() -> None:
    for rank, ended in enumerate(processes(OTHER_PLANS, 2)):
        assert ended.returncode == 1
        assert f"rank {1 - rank} ('device:{1 - rank}') runs with another plan than rank {rank}" in ended.stderr


def test_a_process_that_applies_nothing_is_named_when_the_wait_ends() -> None:
    first, second = processes(OTHER_PLANS, 2, "late")
    assert second.returncode == 3
    assert first.returncode == 1 and "rank 1 ('device:1') has applied no plan" in first.stderr, first.stderr
    assert "(waited 2 s)" in first.stderr, "the group's own limit"
