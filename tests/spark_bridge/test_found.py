"""Spark finds the format by itself, wherever the program is that asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOK = "from pkgutil import iter_modules; print([module.name for module in iter_modules()])"
"""Where Spark looks for sources: what is in directories of the path, and nothing that other finders of imports know."""


def test_the_package_is_found_outside_of_the_checkout(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    found = looked.stdout.decode()
    assert "'pyspark_millrace'" in found, "if it was installed in place before: pip install -e '.[test]' again"
