"""Any file of any format, however damaged, either loads or raises an error of ours: never anything else, never for
long, and never in much memory. A fixed number of damages a format, the same ones each time."""

from __future__ import annotations

import lzma
import random
import resource
from pathlib import Path

import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.importers import load
from tests.fuzz import spoiled
from tests.unit.importers.samples import SAMPLES, write
from tests.work import calls_in

pytestmark = pytest.mark.filterwarnings("ignore")
DAMAGES = 250
MOST_CALLS = 500_000  # ten times what the dearest of them costs


def outcome(path: Path) -> None:
    def attempt() -> None:
        try:
            load(path)
        except LoadmasterError as error:
            assert error.what and str(error)

    assert calls_in(attempt) < MOST_CALLS


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    packed = name.endswith(".xz")
    raw = lzma.decompress(SAMPLES[name]) if packed else SAMPLES[name]
    draw = random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(DAMAGES):
        content = spoiled(raw, draw)
        outcome(write(tmp_path, name, lzma.compress(content, preset=0) if packed else content))
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kib < 400 * 1024


@pytest.mark.parametrize("name", SAMPLES)
def test_files_cut_short(name: str, tmp_path: Path) -> None:
    raw = SAMPLES[name]
    for tenth in range(10):
        outcome(write(tmp_path, name, raw[: len(raw) * tenth // 10]))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_undamaged_load(name: str, tmp_path: Path) -> None:
    assert load(write(tmp_path, name)).num_ops > 0
