"""Problems to which ops are added are as was kept."""

from __future__ import annotations

import json

import pytest

from tests.golden.added import scene


@pytest.mark.parametrize("name", scene.made)
def test_the_numbers_are_the_kept_ones(name: str) -> None:
    scene.check(name)


def test_nothing_is_kept_for_nothing() -> None:
    assert json.loads(scene.file.read_text()).keys() == scene.made.keys()
