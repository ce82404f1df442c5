"""The numbers that modules and functions begin with stay what was kept."""

from __future__ import annotations

import json

from tests.golden.constants import FILE, constants


def test_constants_are_the_kept_ones() -> None:
    assert constants() == json.loads(FILE.read_text()), "python -m tests.golden.constants, if one should change"
