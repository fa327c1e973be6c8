"""How hard hypothesis tries: the same examples each time; with HYPOTHESIS_PROFILE=long other ones, and many more."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,  # the machine may be busy
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("default"), derandomize=False, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
