"""A short round of each part of `python -m tests.faults.upgrade_rounds`, against the version before the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.upgrade_rounds import PREVIOUS, change_broker, roll_cluster
from tests.support.versions import NoSuchVersion, checkout_of


@pytest.fixture(scope="module")
def previous() -> Iterator[Path]:
    try:
        with checkout_of(PREVIOUS) as found:
            yield found
    except NoSuchVersion as error:
        pytest.skip(f"the version before this one is not there: {error}")


def test_a_cluster_is_upgraded_broker_by_broker_under_load(previous: Path, tmp_path: Path) -> None:
    doors = ("native", "mqtt", "later")
    print(roll_cluster(tmp_path, previous, 2, mixed_s=0, ways="up", doors=doors, more=()))


def test_a_data_directory_opens_in_the_next_version_and_again_in_the_one_before(previous: Path, tmp_path: Path) -> None:
    print(change_broker(tmp_path, previous, 2, ways="up down"))
