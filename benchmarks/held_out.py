"""Models that nobody tuned on: each stays as it is under every verb, and is captured alike each time.

    python benchmarks/held_out.py --rows held_out.jsonl --out coverage.md   # some hours of one core
    python benchmarks/held_out.py --only own --limit 20
    python benchmarks/held_out.py --only gpt2,mamba

Own small models (`held_out_own`), the smaller ones of the zoo, and transformers' architectures from tiny configs
(`held_out_configs`). Of each, in a process of its own with limits on time and memory:

- parameters, buffers, attributes, gradients, hooks, flags and random states are the same after each verb, also where a
  capture is interrupted in the middle; the module still computes what it did;
- the graphs of three loads, and of three more in a second process, have one digest for training and one for inference;
- a plan is not refused in the process that made it;
- `apply` on two devices computes what the module does.

A model that does not run eagerly on these inputs says nothing, and is listed apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager
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
from loadmaster.runtime.apply import match

SECONDS, MEMORY_BYTES, LOADS = 400, 12 * 2**30, 3
ZOO = ["inception-v3-b32", "transformer-xl-2", "gnmt-2", "rnnlm-2"]
HEFT: dict[str, Any] = {"method": "heft", "budget": lm.Budget(None, 1)}
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


def checked(make: Callable[[], Made]) -> dict[str, Any]:
    """What was found out about one model; "eager" says why there is nothing to say."""
    torch.manual_seed(0)
    try:
        module, inputs = make()
        real = not any(isinstance(weight, FakeTensor) for weight in module.parameters())
        usual = _run(module, inputs) if real else None
    except Exception as error:
        return {"eager": f"{type(error).__name__}: {error}"[:200]}
    row: dict[str, Any] = {"class": type(module).__name__, "harm": [], "refused": [], "failed": []}
    digests = {mode: _verbs(row, module, inputs, mode == "train") for mode in ("train", "infer")}
    row["digests"] = {mode: sorted(found) for mode, found in digests.items()}
    if usual is not None and not _equal(usual, _run(module, inputs)):
        row["harm"].append("computes something else afterwards")
    plan = row.pop("plan", None)
    if plan is not None and real:
        _applied(row, plan, module, inputs)
    return row


def loaded(make: Callable[[], Made]) -> dict[str, Any]:
    """In another process: digests alone."""
    torch.manual_seed(0)
    module, inputs = make()
    found: dict[str, Any] = {}
    for mode in ("train", "infer"):
        with _noting([], mode):
            found[mode] = sorted({_load(module, inputs, mode == "train").digest for _ in range(LOADS)})
    return found


def _verbs(row: dict[str, Any], module: Any, inputs: Any, training: bool) -> set[str]:
    mode, digests, plans = "train" if training else "infer", set(), []
    with _unharmed(row, f"{mode}: interrupted load", module, inputs), _interrupted():
        _load(module, inputs, training)
    for number in range(LOADS - 1):
        with _unharmed(row, f"{mode}: load", module, inputs), _noting(row["failed"] if not number else [], mode):
            graph = _load(module, inputs, training)
            digests.add(graph.digest)
            row[f"{mode}_ops"] = graph.num_ops
    if not digests:
        return digests
    with _unharmed(row, f"{mode}: plan", module, inputs), _noting(row["failed"], f"{mode}, plan"):
        plans.append(lm.plan(module, inputs=inputs, training=training, on="2xcpu", **HEFT))
        digests.add(plans[0].problem.source.digest)
    if not plans:
        return digests
    with _unharmed(row, f"{mode}: match", module, inputs), _noting(row["refused"], mode):
        match(module, inputs, plans[0])
    row.setdefault("plan", plans[0])
    return digests


def _load(module: Any, inputs: Any, training: bool) -> Any:
    return lm.load(module, inputs=inputs, training=training)


def _applied(row: dict[str, Any], plan: Any, module: Any, inputs: Any) -> None:
    """The step of a plan on two devices against the module's own."""
    harm: dict[str, Any] = {"harm": row.setdefault("harm_of_apply", [])}
    with _noting(row.setdefault("not_applied", []), "apply"), _unharmed(harm, "apply", module, inputs, versions=False):
        lm.apply(module, inputs, plan, devices=["cpu", "cpu"], verify=True).detach()


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


def judged(name: str, make: Callable[[], Made]) -> dict[str, Any]:
    """`checked`, and the digests of a second process beside it."""
    begun = time.monotonic()
    row = {"model": name, **apart(checked, make)}
    if "digests" in row:
        second = apart(loaded, make)
        row["digests"] = {mode: sorted({*row["digests"][mode], *second.get(mode, [])}) for mode in row["digests"]}
        if "ended" in second:
            row["second"] = second["ended"]
    return {**row, "seconds": round(time.monotonic() - begun, 1), "verdict": verdict(row)}


def verdict(row: dict[str, Any]) -> str:
    """ "ok", what is wrong, or why the model says nothing."""
    if "eager" in row or "ended" in row:
        return "no: " + str(row.get("eager", row.get("ended")))
    wrong = [f"harmed {found}" for found in [*row["harm"], *row.get("harm_of_apply", ())][:1]]
    wrong += ["digests differ" for found in row["digests"].values() if len(found) > 1]
    wrong += [f"plan refused {row['refused'][0]}"] if row["refused"] else []
    return "; ".join(wrong) or ("not captured " + row["failed"][0] if row["failed"] else "ok")


def summary(rows: list[dict[str, Any]]) -> list[str]:
    told = [row for row in rows if not row["verdict"].startswith("no: ")]
    captured = [row for row in told if any(row["digests"].values())]
    counts = {
        "models that run eagerly here": len(told),
        "left exactly as they were by load, plan and match": sum(not row["harm"] for row in told),
        "captured, in training or inference": len(captured),
        "of these with one digest a mode over two processes": sum(
            all(len(found) <= 1 for found in row["digests"].values()) for row in captured
        ),
        "whose plan was taken where it was made": sum(not row["refused"] for row in captured),
        "left as they were by apply and its verification": sum(not row.get("harm_of_apply") for row in captured),
        "applied on two devices and equal to the module": sum(not row.get("not_applied") for row in captured),
        "that say nothing": len(rows) - len(told),
    }
    return [f"{count:5} {what}" for what, count in counts.items()]


def page(rows: list[dict[str, Any]]) -> str:
    """All that was tried, model by model."""
    import transformers

    about = f"with torch {torch.__version__.split('+')[0]} and transformers {transformers.__version__}, on the CPU."
    lines = [
        "# Models that nobody tuned on",
        "",
        f"Made by `python benchmarks/held_out.py --rows rows.jsonl --out coverage.md`\n{about}",
    ]
    lines += ["Transformers' architectures have tiny configs and random weights.", "", "```", *summary(rows), "```", ""]
    wrong = [row for row in rows if row["verdict"] != "ok" and not row["verdict"].startswith("no: ")]
    lines += ["## Not captured, or worse", "", *(f"- {row['model']}: {_line(row['verdict'])}" for row in wrong), ""]
    missed = [row for row in rows if row.get("not_applied")]
    lines += [
        "## Captured, not applied",
        "",
        *(f"- {row['model']}: {_line(row['not_applied'][0])}" for row in missed),
        "",
    ]
    lines += [
        "## Captured",
        "",
        "Ops of the graph, views included.",
        "",
        "| model | class | inference | training |",
        "|---|---|--:|--:|",
    ]
    for row in rows:
        if "infer_ops" in row or "train_ops" in row:
            counts = [f"{row[key]:,}" if key in row else "–" for key in ("infer_ops", "train_ops")]
            lines.append(f"| {row['model']} | {row['class']} | {counts[0]} | {counts[1]} |")
    lines += ["", "## Not run", "", "The config or the inputs do not suit these; they say nothing about capturing.", ""]
    lines += [f"- {row['model']}: {_line(row['verdict'][4:])}" for row in rows if row["verdict"].startswith("no: ")]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())[:160].replace("|", "/")


def warm() -> None:
    """Imports and compiles in this process what each child needs. An inference: autograd does not survive a fork."""
    from loadmaster.runtime import running, verify  # noqa: F401

    lm.plan(torch.nn.Linear(2, 2), inputs=(torch.ones(1, 2),), training=False, on="2xcpu", **HEFT)


def _chosen(names: Iterable[str], only: str, limit: int) -> list[str]:
    wanted = [word for word in only.split(",") if word]
    found = [n for n in names if not wanted or n in wanted or any(n.startswith(f"{word}/") for word in wanted)]
    return found[: limit or None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, or 'own' for all of our small ones; with commas")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="results as JSON lines; what is there is not tried again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    rows = {row["model"]: row for row in map(json.loads, kept)}
    found = models()
    warm()
    for name in _chosen(found, options.only, options.limit):
        if name in rows:
            continue
        rows[name] = judged(name, found[name])
        print(f"{name:32} {rows[name]['seconds']:6.1f} s  {_line(rows[name]['verdict'])}", flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(rows[name]) + "\n")
    print("\n".join(summary(list(rows.values()))))
    if options.out:
        options.out.write_text(page(list(rows.values())))


if __name__ == "__main__":
    main()
