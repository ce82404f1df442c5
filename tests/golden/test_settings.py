"""What methods and training do unasked stays what was kept."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from tests.golden.settings import FILE, defaults


def test_defaults_are_the_kept_ones() -> None:
    assert defaults() == json.loads(FILE.read_text()), "python -m tests.golden.settings, if one should change"
