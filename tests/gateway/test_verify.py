"""`millrace verify` as an operator calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner

from gateway.cli import main
from gateway.config import Config, Listen
from gateway.lock import locked_data_dir
from gateway.server import serve


async def filled(directory: Path) -> None:
    doors = Listen(amqp="off", mqtt="off", native="127.0.0.1:0")
    async with serve(Config(data_dir=str(directory), listen=doors)) as server:
        await server.broker.declare_queue("q", durable=True)


def verify(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["verify", *arguments])
    return done.exit_code, done.stdout, done.stderr


async def test_what_is_said_of_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    await filled(directory)
    code, out, err = verify(str(directory))
    assert (code, err) == (0, "the data directory of a single broker\n")
    lines = out.splitlines()
    assert lines[0].split() == ["log", "from", "to", "bytes", "cut", "bytes", "problems"]
    assert lines[1].startswith("catalog/0")
    assert "1 queue" in lines[-1]
    code, out, _ = verify(str(directory), "--json")
    (catalog, *_) = json.loads(out)
    assert (code, catalog["log"], catalog["problems"]) == (0, "catalog/0", 0)
    log = directory / "catalog" / "0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    code, out, err = verify(str(directory))
    assert code == 1
    assert f"millrace: catalog/0/{0:020d}.log is damaged at position 0" in err


async def test_what_cannot_be_looked_at(tmp_path: Path) -> None:
    assert verify(str(tmp_path)) == (1, "", f"millrace: {tmp_path} is no data directory: there is no catalog in it\n")
    assert os.listdir(tmp_path) == []
    assert verify(str(tmp_path / "none"))[0] == 2
    await filled(tmp_path)
    with locked_data_dir(str(tmp_path)):
        told = f"millrace: data directory {tmp_path}: in use by process {os.getpid()}\n"
        assert verify(str(tmp_path)) == (1, "", told)
    (tmp_path / "cluster.json").write_text("{")
    code, _, err = verify(str(tmp_path))
    assert code == 1
    assert "cluster.json is damaged" in err
