"""Golden tests share the tiny studies of the unit tests (tests/unit/training_runs.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
