"""Benchmarks of single parts still run: they stand in for an engine or a client, whose calls change."""

from __future__ import annotations

import sys

import pytest

from benchmarks import mqtt_codec, mqtt_steps


@pytest.mark.parametrize("qos", [0, 1])
async def test_the_mqtt_codec_is_measured(qos: int, capsys: pytest.CaptureFixture[str]) -> None:
    await mqtt_codec.measure("a few", qos, 2, [b"x" * 10] * 20)
    name, *figures = capsys.readouterr().out.rsplit(maxsplit=5)
    assert name == "a few"
    assert all(float(figure) > 0 for figure in figures if figure != "ns")


async def test_the_steps_of_a_message_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    await mqtt_steps.main()
    _, *rows = capsys.readouterr().out.splitlines()
    found = {tuple(row.split()[:4]): [int(figure) for figure in row.split()[4:]] for row in rows}
    assert len(found) == 6
    for version in ("3.1.1", "5"):
        plain, confirmed = (found[version, "QoS", qos, "PUBLISH"] for qos in "01")
        assert 10 < plain[0] < confirmed[0]
        if sys.version_info < (3, 12):  # later ones do not tell of all bytecodes
            assert 10 * plain[0] < plain[1] < confirmed[1]
