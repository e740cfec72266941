"""Run Hypothesis without deadlines. A loaded machine is slow, which is not a defect of the code."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("SOS_EXAMPLES", "50"))  # per property; .ci/run sets a higher number

settings.register_profile("busy-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES)
settings.load_profile("busy-machine")
