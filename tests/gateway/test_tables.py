"""Lists as the command line prints them."""

from __future__ import annotations

import pytest

from gateway.client_cli import show, show_fields


def test_no_two_columns_of_a_table_have_one_title(capsys: pytest.CaptureFixture[str]) -> None:
    show(["client_id", "connected", "connected_at_ms", "ends_at_ms"], [["s", True, 0, 0]], False)
    assert capsys.readouterr().out.splitlines()[0].split("  ")[:2] == ["client id", "connected"]
    show(["connected", "connected_at_ms", "ends_at_ms"], [], False)
    assert capsys.readouterr().out == "connected  connected at  ends\n"


def test_the_times_of_one_thing_are_shown_as_in_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_fields({"topic": "t", "ends_at_ms": 0, "bytes": 5}, False)
    assert capsys.readouterr().out == "topic  t\nends   never\nbytes  5\n"
