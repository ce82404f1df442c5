"""Models that nobody tuned on: each stays as it is under every verb, and is captured alike each time.

    python benchmarks/held_out.py --rows held_out.jsonl --out docs/coverage.md   # about an hour of one core
    python benchmarks/held_out.py --only own --limit 20
    python benchmarks/held_out.py --only gpt2,mamba

Own small models (`held_out_own`), the smaller ones of the zoo, and transformers' architectures from tiny configs
(`held_out_configs`). Of each, in a process of its own with limits on time and memory:

- parameters, buffers, attributes, gradients, hooks, flags and random states are the same after each verb, also where a
  capture is interrupted in the middle; the module still computes what it did;
- the graphs of three loads, and of three more in a second process with another hash seed, have one digest for training
  and one for inference;
- a random plan on two devices is taken in the process that made it, and its step is verified, in both modes. Where the
  refusal asks for one call of the module, which sets its Python state, that call is made, and the rest tried again.

A model that does not run eagerly on these inputs says nothing, and is listed apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from held_out_own import OWN
from held_out_state import change, random_states, seen_of, working_copy
from torch._subclasses import FakeTensor

import loadmaster as lm
from loadmaster.errors import LoadmasterError
from loadmaster.importers.torch import step
from loadmaster.importers.torch.arguments import as_arguments, split
from loadmaster.runtime.watching import SETTLES

SECONDS, MEMORY_BYTES, LOADS, SEED = 240, 12 * 2**30, 3, 36
ZOO = ["inception-v3-b32", "transformer-xl-2", "gnmt-2", "rnnlm-2"]
RANDOM: dict[str, Any] = {"method": "random", "budget": lm.Budget(None, 1), "seed": SEED, "on": "2xcpu"}
MODES = {"infer": "inference", "train": "training"}
Made = tuple[Any, Any]


def models() -> dict[str, Callable[[], Made]]:
    """Everything on the list, by name."""
    from held_out_configs import TRIED, build, example_inputs

    def foreign(kind: str) -> Made:
        module = build(kind)
        return module, example_inputs(module)

    found: dict[str, Callable[[], Made]] = {f"own/{name}": make for name, make in OWN.items()}
    found |= {f"zoo/{name}": lambda name=name: without_memory_of(name) for name in ZOO}  # type: ignore[misc]
    return found | {kind: lambda kind=kind: foreign(kind) for kind in TRIED}  # type: ignore[misc]


def without_memory_of(name: str) -> Made:
    """Of the zoo: too large for anything but a capture."""
    from loadmaster.importers.torch.building import built
    from loadmaster.zoo import ENTRIES

    made: Made = built(lambda: ENTRIES[name].model(True), name)
    return made


def checked(make: Callable[[], Made], loads: int) -> dict[str, Any]:
    """What was found out about one model; "eager" says why there is nothing to say."""
    torch.manual_seed(0)
    try:
        module, inputs = make()
        real = not any(isinstance(weight, FakeTensor) for weight in module.parameters())
        usual = _run(module, inputs) if real else None
    except Exception as error:
        return {"eager": f"{type(error).__name__}: {error}"[:200]}
    row: dict[str, Any] = {"class": type(module).__name__, "harm": [], "failed": [], "not_verified": [], "verified": {}}
    digests, plans = {}, {}
    for mode in MODES:
        digests[mode], plans[mode] = _verbs(row, module, inputs, mode, loads)
    row["digests"] = {mode: sorted(found) for mode, found in digests.items()}
    if usual is not None and not _equal(usual, _run(module, inputs)):
        row["harm"].append("computes something else afterwards")
    for mode, plan in plans.items():
        if plan is not None and real:
            _applied(row, mode, plan, module, inputs)
    return row


def loaded(make: Callable[[], Made], loads: int) -> dict[str, Any]:
    """In another process: digests alone."""
    torch.manual_seed(0)
    module, inputs = make()
    found: dict[str, Any] = {}
    for mode in MODES:
        with _noting([], mode):
            found[mode] = sorted({_load(module, inputs, mode).digest for _ in range(loads)})
    return found


def _verbs(row: dict[str, Any], module: Any, inputs: Any, mode: str, loads: int) -> tuple[set[str], Any]:
    """Digests of a load and of a plan's load, and the plan; `apply` captures a third time, and compares digests."""
    digests: set[str] = set()
    if loads:
        with _unharmed(row, f"{mode}: interrupted load", module, inputs), _interrupted():
            _load(module, inputs, mode)
        with _unharmed(row, f"{mode}: load", module, inputs), _noting([], mode):
            digests.add(_load(module, inputs, mode).digest)
    plan = None
    with _unharmed(row, f"{mode}: plan", module, inputs), _noting(row["failed"], mode):
        plan = lm.plan(module, inputs=inputs, training=mode == "train", **RANDOM)
        digests.add(plan.problem.source.digest)
        row[f"{mode}_ops"] = plan.problem.source.num_ops
    return digests, plan


def _load(module: Any, inputs: Any, mode: str) -> Any:
    return lm.load(module, inputs=inputs, training=mode == "train")


def _applied(row: dict[str, Any], mode: str, plan: Any, module: Any, inputs: Any) -> None:
    """The step of a plan on two devices against the module's own."""
    with _noting(row["not_verified"], mode):
        if "called" in row:
            plan = lm.plan(module, inputs=inputs, training=mode == "train", **RANDOM)
        with _unharmed(row, f"{mode}: apply", module, inputs, versions=False), suppress(_Settles):
            _apply(row, mode, plan, module, inputs)
        if mode in row["verified"]:
            return
        _call_once(module, inputs, mode)
        row.setdefault("called", []).append(mode)
        plan = lm.plan(module, inputs=inputs, training=mode == "train", **RANDOM)
        with _unharmed(row, f"{mode}: apply after a call", module, inputs, versions=False):
            _apply(row, mode, plan, module, inputs)


class _Settles(Exception):
    """The refusal asks for one call of the module, which sets its Python state for all later ones."""


def _apply(row: dict[str, Any], mode: str, plan: Any, module: Any, inputs: Any) -> None:
    try:
        step = lm.apply(module, inputs, plan, devices=["cpu", "cpu"], verify=True)
    except LoadmasterError as error:
        if error.fix == SETTLES and mode not in row.get("called", []):
            raise _Settles from error
        raise
    row["verified"][mode] = step.verified
    step.detach()


def _call_once(module: Any, inputs: Any, mode: str) -> None:
    """As a loop does, in its mode."""
    flags = [(part, part.training) for part in module.modules()]
    args, kwargs = split(as_arguments(inputs, ""))
    module.train(mode == "train")
    with torch.set_grad_enabled(mode == "train"):
        module(*args, **kwargs)
    for part, training in flags:
        part.training = training


@contextmanager
def _unharmed(row: dict[str, Any], verb: str, module: Any, inputs: Any, versions: bool = True) -> Any:
    before, states = seen_of(module, inputs), random_states()
    try:
        yield
    finally:
        found = change(before, seen_of(module, inputs), versions) or change(states, random_states())
        if found:
            row["harm"].append(f"{verb}: {found}")


@contextmanager
def _noting(failures: list[str], what: str) -> Any:
    try:
        yield
    except LoadmasterError as error:
        failures.append(f"{what}: {error.what} [{error.where}]"[:300])
    except Exception as error:  # a fault of ours
        failures.append(f"{what}: FAULT {type(error).__name__}: {error}"[:300])


@contextmanager
def _interrupted() -> Any:
    """As if Ctrl-C were pressed when the forward pass is done."""
    plain = step._Step._forward

    def forward(self: Any, tensors: Any) -> Any:
        plain(self, tensors)
        raise KeyboardInterrupt

    step._Step._forward = forward  # type: ignore[method-assign]
    try:
        yield
    except (KeyboardInterrupt, LoadmasterError):
        pass
    finally:
        step._Step._forward = plain  # type: ignore[method-assign]


def _run(module: Any, inputs: Any) -> Any:
    """One forward pass, on a copy where there can be one; None where two of them differ anyway."""
    results = []
    for _ in range(2):
        own = working_copy(module)
        args, kwargs = split(as_arguments(inputs, ""))
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            result = own(*args, **kwargs)
            step.loss_of(result, "")
        results.append([tensor.clone() for tensor in step.tensors_of(result)])
    return results[0] if _equal(*results) else None


def _equal(one: Any, other: Any) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True)
    )


def _child(work: Callable[[Any], Any], make: Callable[[], Made], pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.alarm(SECONDS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        pipe.send(work(make))
    except Exception as error:
        pipe.send({"ended": f"{type(error).__name__}: {error}"[:300]})


def apart(work: Callable[[Any], Any], make: Callable[[], Made]) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, make, theirs))
    child.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    except EOFError:
        found = {"ended": "too slow or too large"}
    child.join()
    return found


def judged(name: str, make: Callable[[], Made], second: Connection | None, loads: int) -> dict[str, Any]:
    """`checked`, and the digests of a second process beside it."""
    begun = time.monotonic()
    row = {"model": name, "loads": loads, **apart(partial(checked, loads=loads), make)}
    if "digests" in row and second is not None:
        second.send((name, loads))
        found = second.recv()
        row["digests"] = {mode: sorted({*row["digests"][mode], *found.get(mode, [])}) for mode in row["digests"]}
        if "ended" in found:
            row["second"] = found["ended"]
    return {**row, "seconds": round(time.monotonic() - begun, 1), "verdict": verdict(row)}


def verdict(row: dict[str, Any]) -> str:
    """ "ok", what is wrong, or why the model says nothing."""
    if "eager" in row:
        return "no: " + row["eager"]
    if "ended" in row:
        return "ended: " + row["ended"]
    wrong = [f"harmed {found}" for found in row["harm"][:1]]
    wrong += ["digests differ" for found in row["digests"].values() if len(found) > 1]
    wrong += [f"not captured: {found}" for found in row["failed"][:1]]
    return "; ".join(wrong + [f"not verified: {found}" for found in row["not_verified"][:1]]) or "ok"


def summary(rows: list[dict[str, Any]]) -> list[str]:
    told = [row for row in rows if "eager" not in row]
    done = [row for row in told if "digests" in row]
    captured = [row for row in done if any(row["digests"].values())]
    often = [row for row in captured if row["loads"] == LOADS]
    both = [row for row in captured if all(mode in row["verified"] for mode in MODES)]
    counts = {
        "tried": len(rows),
        "run eagerly on their inputs": len(told),
        "bit-identical after every verb": sum(not row["harm"] for row in done),
        "captured for inference": sum(bool(row["digests"]["infer"]) for row in captured),
        "captured for training": sum(bool(row["digests"]["train"]) for row in captured),
        "loaded three times in each of two processes": len(often),
        "with one digest a mode": sum(all(len(found) <= 1 for found in row["digests"].values()) for row in captured),
        "verified on two devices for inference": sum("infer" in row["verified"] for row in captured),
        "verified on two devices for training": sum("train" in row["verified"] for row in captured),
        "captured and verified in both modes": len(both),
        "of these after one call that a refusal asked for": sum("called" in row for row in both),
    }
    return [f"{count:5} {what}" for what, count in counts.items()]


def page(rows: list[dict[str, Any]]) -> str:
    """How many were tried, captured and verified."""
    import transformers

    foreign = [row for row in rows if "/" not in row["model"]]
    own = [row for row in rows if "/" in row["model"]]
    about = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, CPU, seed {SEED}"
    lines = [
        "# Models nobody tuned on",
        "",
        f"`python benchmarks/held_out.py --rows rows.jsonl --out docs/coverage.md` made this page ({about}).",
        "Each model is small, has random weights, and runs eagerly first. Its module is compared before and after each",
        "verb. A random plan on two devices is applied and verified. What a step cannot carry is refused by name.",
        "",
        *(line for title, part in (("Architectures of transformers", foreign), ("Our own, and the zoo's", own)) if part
          for line in (f"## {title}", "", "```", *summary(part), "```", "")),
        "[Every model by name, and why one is not verified](log/coverage.md).",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def names(rows: list[dict[str, Any]]) -> str:
    """Every model by name, and why one was not captured or verified; outside the site's navigation and search."""
    lines = ["---", "search:", "  exclude: true", "---", "", "# Models nobody tuned on, by name", ""]
    wrong = [row for row in rows if row["verdict"] != "ok" and "eager" not in row]
    lines += ["## Not captured, or not verified", "", *(f"- {row['model']}: {_line(row['verdict'])}" for row in wrong)]
    tried = {row["model"] for row in rows}
    untried = [name for name in models() if name not in tried]
    lines += ["", f"## Not tried in this run: {len(untried)}", "", ", ".join(untried) + "."] if untried else []
    silent = [row for row in rows if "eager" in row]
    lines += ["", "## Not run", "", "The config or the inputs do not suit these; they say nothing about capturing.", ""]
    lines += [f"- {row['model']}: {_line(row['eager'])}" for row in silent]
    lines += [
        "",
        "## Captured and verified",
        "",
        ", ".join(row["model"] for row in rows if row["verdict"] == "ok") + ".",
    ]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return f"`{' '.join(text.split())[:160].replace('`', chr(39))}`"


def warm() -> None:
    """Imports and compiles in this process what each child needs. An inference: autograd does not survive a fork."""
    from loadmaster.runtime import running, verify  # noqa: F401

    lm.plan(torch.nn.Linear(2, 2), inputs=(torch.ones(1, 2),), training=False, **RANDOM)


def second_process() -> Connection:
    """Takes names, gives digests; with another hash seed than this process."""
    ours, theirs = multiprocessing.Pipe()
    seed, os.environ["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED"), "1"
    multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=False).start()
    del os.environ["PYTHONHASHSEED"]
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    theirs.close()
    return ours


def _serve(pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    warm()
    found = models()
    with suppress(EOFError):
        while True:
            name, loads = pipe.recv()
            pipe.send(apart(partial(loaded, loads=loads), found[name]))


def _chosen(names: Iterable[str], only: str, limit: int) -> list[str]:
    """In the order in which they are asked for."""
    every = list(names)
    wanted = [word for word in only.split(",") if word] or every
    found = [name for word in wanted for name in every if name == word or name.startswith(f"{word}/")]
    return found[: limit or None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, or 'own' for all of our small ones; with commas")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--loads", type=int, default=LOADS, help="in a second process; 0: that of the plan alone")
    parser.add_argument("--rows", type=Path, help="results as JSON lines; what is there is not tried again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    rows = {row["model"]: row for row in map(json.loads, kept)}
    found = models()
    warm()
    second = second_process() if options.loads else None
    for name in _chosen(found, options.only, options.limit):
        if name in rows:
            continue
        rows[name] = judged(name, found[name], second, options.loads)
        print(f"{name:32} {rows[name]['seconds']:6.1f} s  {_line(rows[name]['verdict'])}", flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(rows[name]) + "\n")
    if second is not None:
        second.close()
    print("\n".join(summary(list(rows.values()))))
    if options.out:
        options.out.write_text(page(list(rows.values())))
        (options.out.parent / "log" / options.out.name).write_text(names(list(rows.values())))


if __name__ == "__main__":
    main()
