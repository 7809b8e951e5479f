"""How long to fuzz: ``make fuzz`` takes the profile "fuzz", the suite the other."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]

settings.register_profile("suite", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("fuzz", max_examples=20_000, deadline=None, suppress_health_check=_SLOW)
if settings.get_current_profile_name() == "default":
    settings.load_profile("suite")
