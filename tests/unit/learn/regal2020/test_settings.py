"""Which folds can be asked for."""

from __future__ import annotations

import pytest

from loadmaster.errors import InvalidSetting
from loadmaster.learn.regal2020.settings import RegalSettings


@pytest.mark.parametrize(("folds", "fold"), [(0, 0), (2, 0), (2, 1), (5, 4)])
def test_folds_that_are_there(folds: int, fold: int) -> None:
    assert RegalSettings("train", "valid", folds=folds, fold=fold).fold == fold


@pytest.mark.parametrize(("folds", "fold"), [(0, 1), (1, 0), (-1, 0), (2, 2), (2, -1), (5, 5)])
def test_folds_that_are_not(folds: int, fold: int) -> None:
    with pytest.raises(InvalidSetting, match=f"fold {fold} of {folds}"):
        RegalSettings("train", "valid", folds=folds, fold=fold)
