"""What is said where PySpark is too old."""

from __future__ import annotations

import pytest

from spark_bridge.too_old import TooOld
from spark_bridge.versions import complaint


@pytest.mark.parametrize("version", ["4.3.0", "4.10.1", "5.0.0.dev1"])
def test_these_will_do(version: str) -> None:
    assert complaint(version) is None


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.2.0"])
def test_these_are_told_what_to_do(version: str) -> None:
    said = complaint(version)
    assert said is not None
    assert f"needs PySpark 4.3 or newer, and this is {version}: update it" in said


def test_the_format_of_older_ones_says_so_when_it_is_used() -> None:
    assert TooOld.name() == "millrace"
    with pytest.raises(ImportError):
        TooOld({"subscribe": "t"})
