"""Where things are in a checkout: the command line runs from one, where the examples and both environments are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""
TRAIN_PYTHON = ROOT / ".venv-train" / "bin" / "python"
"""Interpreter of the environment with engine and ranks."""
DEFAULT_RUN_DIR = Path("run")
"""Folder of a running system: endpoints.json, record.db, logs/."""
