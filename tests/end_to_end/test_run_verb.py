"""loadmaster run: a plan made and saved on the command line runs there."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

pytest.importorskip("torch")

from loadmaster.cli.verbs import app
from tests.end_to_end import warm

MODEL = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4)), (torch.ones(6, 8),)
"""


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which says nothing of two versions within a second
    (folder / "runmodel.py").write_text(MODEL)
    return "runmodel:net"


def said(*words: str) -> Result:
    """A command in this process, which has torch already, with the model as its file is now."""
    sys.modules.pop("runmodel", None)
    importlib.invalidate_caches()
    return CliRunner().invoke(app, words)


def test_plan_then_run(model: str, folder: Path) -> None:
    made = warm.run(
        *("plan", model, "--on", "2xp100-pcie", "--method", "random", "--simulations", "5"),
        *("--save", "plan.json", "--optimizer", "sgd", "--batch", "3", "--dtype", "float64"),
    )
    assert made.returncode == 0, made.stderr
    assert "captured: training with sgd, input[0] float64[3, 8]" in made.stdout
    ran = warm.run("run", model, "--plan", "plan.json", "--verify", "--json", "--steps", "1")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "every bit" in found["verification"] and found["mode"] == "training"
    assert found["measured_ns"] > 0 and found["modelled_ns"] > 0
    shown = warm.run("run", model, "--plan", "plan.json", "--steps", "1")
    assert "modelled" in shown.stdout and "p100-pcie:1" in shown.stdout


def test_an_inference(model: str, folder: Path) -> None:
    made = warm.run("plan", model, "--infer", "--method", "one-device", "--simulations", "1", "--save", "plan.json")
    assert made.returncode == 0 and "captured: inference" in made.stdout, made.stderr
    ran = warm.run("run", model, "--plan", "plan.json", "--verify", "--steps", "1")
    assert "verified: equal to the module in every bit" in ran.stdout, ran.stderr


def test_what_is_refused(model: str, folder: Path) -> None:
    assert "updates nothing" in said("plan", model, "--infer", "--optimizer", "sgd").stderr
    assert "is for a torch model" in said("plan", "zoo:gnmt-2", "--batch", "3").stderr
    said("plan", model, "--method", "one-device", "--simulations", "1", "--save", "plan.json")
    (folder / "runmodel.py").write_text(MODEL.replace("16", "17"))
    ran = said("run", model, "--plan", "plan.json")
    assert ran.exit_code == 1 and "another model" in ran.stderr


def test_a_plan_needs_no_second_description_of_its_model(model: str, folder: Path) -> None:
    made = said(
        *("plan", model, "--on", "2xp100-pcie", "--method", "whole-modules:granularity=module,inner=expert"),
        *("--simulations", "5", "--save", "plan.json", "--optimizer", "sgd", "--batch", "3"),
    )
    assert made.exit_code == 0, made.stderr
    named = said("explain", "plan.json", "--model", model, "--seconds", "0.1", "--json")
    (folder / "runmodel.py").write_text("raise SystemExit('no code that a plan names is run')\n")
    told = said("explain", "plan.json", "--seconds", "0.1", "--json")
    assert told.exit_code == named.exit_code == 0, told.stderr + named.stderr
    first, second = json.loads(told.stdout), json.loads(named.stdout)
    assert first.keys() == second.keys() and first["graph"] == second["graph"]
    mapped = said("export", "plan.json", "--to", "device-map")
    assert mapped.exit_code == 0 and mapped.stdout.strip().startswith("{"), mapped.stdout + mapped.stderr
