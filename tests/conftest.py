"""Hypothesis: the same examples on every machine, and nothing written beside the tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ci", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("hunt", settings.get_profile("ci"), derandomize=False)
settings.load_profile(os.environ.get("LOADMASTER_HYPOTHESIS", "ci"))

# Plans of one test are no starts for another, and none of them is kept among the user's own.
os.environ["LOADMASTER_PLANS"] = "off"
