"""Why a learned policy decides so, in words, from the data of `papers.explaining`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmaster.report.grids import Grid, Section, section_text

MOST_REASONS = 8  # the longest; more are no help to a reader


def policy_text(said: Mapping[str, Any]) -> str:
    """For a terminal."""
    return section_text(policy_section(said)) + "\n"


def policy_section(said: Mapping[str, Any]) -> Section:
    """Why a policy puts groups of ops where it does, from `papers.explaining`: what moved each decision, and a test."""
    each = ", ".join(f"{name} {count:,}" for name, count in zip(said["devices"], said["ops"], strict=True))
    told = [f"Ops on each device: {each}."]
    if not said["tested"]:
        told.append("It puts all ops alike: no feature of one moves its decision.")
        return Section(f"Why {said['policy']} decides so", tuple(told), ())
    told.append(
        f"Changing what is named moves the decision of {said['held']} of {said['tested']} groups, with features of a "
        "group that was not asked before."
    )
    head = ("group of", "ops", "device", "because of its", "with another's")
    rows = tuple(
        (
            reason["op"],
            f"{reason['ops']:,}",
            reason["device"],
            ", ".join(reason["because"]) or "none of its features",
            reason["instead"] if reason["holds"] else "stays",
        )
        for reason in said["reasons"][:MOST_REASONS]
    )
    return Section(
        f"Why {said['policy']} decides so", tuple(told), (Grid("The longest first", head, rows, frozenset((1,))),)
    )
