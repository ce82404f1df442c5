"""What passes make of problems and graphs stays what was kept."""

from __future__ import annotations

import json

import pytest

from tests.golden.passes import scene


@pytest.mark.parametrize("name", scene.made)
def test_what_is_made_is_what_was_kept(name: str) -> None:
    scene.check(name)


def test_nothing_is_kept_for_nothing() -> None:
    assert json.loads(scene.file.read_text()).keys() == scene.made.keys()
