"""Models and training loops as people write them, and whether an applied step trains them as eager torch does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.contract.cases import Case


def listed() -> list[Case]:
    """Every case, in the order of the files."""
    from tests.contract import (  # noqa: F401
        of_changes,
        of_hooks,
        of_inputs,
        of_models,
        of_optimizers,
        of_state,
        of_surroundings,
    )
    from tests.contract.cases import CASES

    return CASES
