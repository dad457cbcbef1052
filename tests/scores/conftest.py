from __future__ import annotations

from hypothesis import settings

# A machine at work elsewhere, or a first import inside an example, is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
