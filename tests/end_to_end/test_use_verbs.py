"""fits and export of ordinary models, as a user types them."""

from __future__ import annotations

import json

from loadmaster import Cluster, Plan, load, price
from loadmaster.files import save_plan
from tests.end_to_end import warm
from tests.end_to_end.conftest import parsed

FEW = ("--simulations", "20")


def test_fits_says_what_would_help_and_its_words_work(model: str) -> None:
    """Weights of 4 x 16 MiB: one device of 64 MB cannot hold them, two can."""
    done = warm.run("fits", model, "--on", "1GiB", *FEW)
    assert done.returncode == 0 and "fits" in done.stdout, done.stderr
    done = warm.run("fits", model, "--on", "64MB", *FEW, "--json")
    found = parsed(done.stdout)
    assert done.returncode == 3 and not found["fits"] and found["need_bytes"] > found["have_bytes"]
    [more] = [change for change in found["changes"] if "more device" in change["what"]]
    on = more["command"].split()[1]
    assert warm.run("fits", model, "--on", on, *FEW).returncode == 0
    done = warm.run("fits", model, "--on", "1GiB", "--weights", "int8")
    assert done.returncode == 1 and "hf:FOLDER" in done.stderr


def test_a_plan_for_a_runtime_is_exported_and_a_split_one_refused(model: str) -> None:
    on = ("--on", "2xp100-pcie")
    done = warm.run("plan", model, *on, "--for", "device-map", *FEW, "--save", "plan.json", "--json")
    told = parsed(done.stdout)["restriction"]
    assert done.returncode == 0 and told["granularity"] == "block" and told["step_ns"] >= 1
    found = json.loads(warm.run("export", "plan.json", "--to", "device-map", "--model", model, *on).stdout)
    assert set(found) == {"layers.0", "layers.1", "layers.2", "layers.3", "head"}
    problem = price(load(model), Cluster.preset("2xp100-pcie"))
    save_plan(Plan.of(problem, [i % 2 for i in range(problem.num_ops)]), problem, "split.json")
    done = warm.run("export", "split.json", "--to", "vllm", "--model", model, *on)
    assert done.returncode == 1 and "'layers.0' on" in done.stderr and "--for vllm" in done.stderr
