"""Hypothesis without deadlines: machines that are busy are slow, and that is no fault of the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("busy-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy-machine")
