"""Where things are, for tests."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THIRD_PARTY = Path(os.environ.get("TUNER_THIRD_PARTY", ROOT.parent / "shared"))
"""Traces of others, too large or not ours to ship; tests that need them skip without."""
