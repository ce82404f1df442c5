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
from tests.unit.importers.samples import SAMPLES, write
from tests.work import calls_in

pytestmark = pytest.mark.filterwarnings("ignore")
DAMAGES = 250
MOST_CALLS = 500_000  # ten times what the dearest of them costs
HOSTILE = [
    b"", b"\0", b"\xff" * 9, b"\x80" * 12, b"9" * 400, b"-1", b"0", b"(" * 300, b"{" * 300, b"[" * 300, b"}" * 9, b'"',
    b"%", b"99999999999999999", b"999999999999", b"\n", b"#", b"<" * 100, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f",
    b",", b"=", b":",
]  # fmt: skip


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """One to three changes: a part cut out, doubled, moved, or replaced by something hostile."""
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(raw) + 1)
        end = min(len(raw), start + draw.choice([0, 1, 2, 4, 20, len(raw)]))
        other = draw.randrange(len(raw) + 1)
        choices = [draw.choice(HOSTILE), raw[start:end] * 2, raw[other : other + 30], bytes([draw.randrange(256)])]
        raw = raw[:start] + draw.choice(choices) + raw[end:]
    return raw


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
        content = damaged(raw, draw)
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
