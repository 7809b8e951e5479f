"""How long to fuzz: ``make fuzz`` takes the profile "fuzz", FUZZ_EXAMPLES of each test; the suite the other."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]

settings.register_profile("suite", max_examples=60, deadline=None, suppress_health_check=_SLOW)
_LONG = int(os.environ.get("FUZZ_EXAMPLES", "20000"))
settings.register_profile("fuzz", max_examples=_LONG, deadline=None, suppress_health_check=_SLOW)
if settings.get_current_profile_name() in ("default", "ci"):  # hypothesis's own: the second where $CI is set
    settings.load_profile("suite")
