"""Benchmarks of single parts still run: they stand in for an engine or a client, whose calls change."""

from __future__ import annotations

import pytest

from benchmarks import mqtt_codec


@pytest.mark.parametrize("qos", [0, 1])
async def test_the_mqtt_codec_is_measured(qos: int, capsys: pytest.CaptureFixture[str]) -> None:
    await mqtt_codec.measure("a few", qos, 2, [b"x" * 10] * 20)
    name, *figures = capsys.readouterr().out.rsplit(maxsplit=5)
    assert name == "a few"
    assert all(float(figure) > 0 for figure in figures if figure != "ns")
