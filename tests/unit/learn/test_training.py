"""What all training runs share: their card, how often they are saved, how much is under way."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from loadmaster.errors import InvalidSetting  # noqa: E402
from loadmaster.learn import training as runs  # noqa: E402
from loadmaster.learn.go2020.settings import GoSettings  # noqa: E402


@pytest.mark.parametrize(("processor", "named"), [("chip", "chip"), ("", "machine")])
def test_a_card_names_the_processor_or_the_kind_of_machine(
    processor: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 52.6])
    monkeypatch.setattr(runs.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(runs.platform, "processor", lambda: processor)
    monkeypatch.setattr(runs.platform, "machine", lambda: "machine")
    given = runs.TrainingSettings("corpus", str(tmp_path), device="cpu", policy="any")
    runs.TrainingRun(given, torch.nn.Linear(1, 1), None, 0.1, 3.0).card(fact=1)
    text = (tmp_path / "card.json").read_text()
    card = json.loads(text)
    assert card["hardware"].startswith(f"{named}, ") and (card["seconds"], card["fact"]) == (50, 1)
    assert text.startswith('{\n "policy"') and "corpus" not in card["settings"]


@pytest.mark.parametrize(("workers", "cores", "window"), [(2, 9, 6), (0, 4, 12), (0, None, 3)])
def test_three_jobs_of_each_process_may_be_under_way(
    workers: int, cores: int | None, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.os, "cpu_count", lambda: cores)
    assert runs.TrainingSettings("corpus", "out", workers=workers).window == window
    assert GoSettings("corpus", "out", workers=workers).processes == window // 3


@pytest.mark.parametrize(("used", "saves"), [(30.0, False), (30.5, True)])
def test_a_run_is_saved_when_its_seconds_are_over(
    used: float, saves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, saved = [100.0], list[str]()
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    given = runs.TrainingSettings("corpus", str(tmp_path), device="cpu", minutes=2.0)
    run = runs.TrainingRun(given, torch.nn.Linear(1, 1), SimpleNamespace(phase="fit", step=3), 0.1, 90.0)
    monkeypatch.setattr(run, "save", lambda: saved.append("saved"))
    now[0] += used
    run.save_now_and_then()
    assert bool(saved) == saves
    run.note(loss=0.123456)
    assert run.rows == [{"phase": "fit", "step": 3, "seconds": 10.0 + used, "loss": 0.12346}]
    now[0] = 90.0 + 60.0
    assert [run.late(share) for share in (0.4, 0.5, 0.6)] == [True, False, False]


@pytest.mark.parametrize(
    ("device", "there", "used"), [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu")]
)
def test_a_gpu_is_used_where_there_is_one(device: str, there: bool, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert runs.TrainingSettings("corpus", "out", device=device).torch_device.type == used


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSetting, match="no GPU"):
        runs.TrainingSettings("corpus", "out", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runs.TrainingSettings("corpus", "out", device="cuda").torch_device.type == "cuda"
