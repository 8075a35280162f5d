"""A broker within the test's own process, and the engine's turns seen from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from gateway.config import Config, Limits, Listen
from gateway.errors import StartError
from gateway.lock import locked_data_dir
from gateway.server import serve
from protocols.mqtt.config import MqttConfig

ANY = "127.0.0.1:0"


def config(directory: Path, **listen: str) -> Config:
    doors = {"amqp": ANY, "mqtt": ANY, "native": ANY, **listen}
    return Config(data_dir=str(directory / "data"), listen=Listen(**doors), limits=Limits(close_linger_ms=200))


async def connected(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def test_every_door_answers_and_ports_are_known(tmp_path: Path) -> None:
    async with serve(config(tmp_path)) as server:
        assert set(server.ports) == {"amqp", "mqtt", "native"}
        with trio.fail_after(10):
            async with await connected(server.ports["amqp"]) as amqp:
                await amqp.send_all(b"AMQP\0\0\x09\1")
                assert (await amqp.receive_some(11))[7:] == b"\0\x0a\0\x0a"  # connection.start
            async with await connected(server.ports["mqtt"]) as mqtt:
                await mqtt.send_all(b"\x10\x0d\0\4MQTT\4\2\0\0\0\1x")
                assert await mqtt.receive_some(4) == b"\x20\2\0\0"


async def test_doors_may_be_off(tmp_path: Path) -> None:
    async with serve(config(tmp_path, amqp="off", native="off")) as server:
        assert set(server.ports) == {"mqtt"}


async def test_a_virtual_host_that_a_door_is_for_and_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings.mqtt = MqttConfig(virtual_host="fleet")
    for is_there in (False, True):
        with capture_logs() as said:
            async with serve(settings) as server:
                if not is_there:
                    await server.broker.set_vhost("fleet")
        missing = [(one["setting"], one["virtual_host"]) for one in said if one["event"] == "virtual host is missing"]
        assert missing == ([] if is_there else [("mqtt.virtual_host", "fleet")])


async def test_a_user_that_clients_without_a_name_are_to_be_and_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings.mqtt = MqttConfig(anonymous_user="sensors")
    for is_there in (False, True):
        with capture_logs() as said:
            async with serve(settings) as server:
                if not is_there:
                    await server.broker.rights.add_user("sensors", b"secret")
                    await server.broker.rights.delete_user("guest")
        missing = [(one["setting"], one["user"]) for one in said if one["event"] == "user is missing"]
        assert missing == ([] if is_there else [("mqtt.anonymous_user", "sensors")])


async def test_who_opens_a_door_to_others_and_has_no_user_for_them_is_told_how_to_make_one(tmp_path: Path) -> None:
    settings = config(tmp_path, amqp="0.0.0.0:0", mqtt="0.0.0.0:0")
    open_doors = []
    for anonymous in ("loopback", "always", "loopback"):
        settings.mqtt = MqttConfig(anonymous=anonymous)  # type: ignore[arg-type]
        with capture_logs() as said:
            async with serve(settings) as server:
                if anonymous == "always":
                    await server.broker.rights.add_user("ada", b"secret")
        open_doors.append([one["doors"] for one in said if "`millrace users add NAME`" in one["event"]])
    assert open_doors == [["amqp, mqtt"], ["amqp"], []]


async def test_stopping_ends_all_connections_and_frees_ports_and_directory(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with serve(settings) as server:
        port = server.ports["mqtt"]
        client = await connected(port)
        await client.send_all(b"\x10\x0d\0\4MQTT\4\2\0\0\0\1x")
        assert await client.receive_some(4) == b"\x20\2\0\0"
    assert await client.receive_some(1) == b""
    await client.aclose()
    settings.listen.mqtt = f"127.0.0.1:{port}"
    async with serve(settings) as server:
        assert server.ports["mqtt"] == port


async def test_an_error_in_the_block_ends_the_server_too(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with serve(settings):
            raise ZeroDivisionError
    async with serve(settings):
        pass


async def test_one_server_a_directory(tmp_path: Path) -> None:
    async with serve(config(tmp_path)):
        with pytest.raises(StartError, match=f"in use by process {os.getpid()}"):
            async with serve(config(tmp_path)):
                raise AssertionError("a second server on one directory")


async def test_a_port_in_use_is_noticed_before_the_directory_is_touched(tmp_path: Path) -> None:
    async with serve(config(tmp_path)) as server:
        other = tmp_path / "other"
        with pytest.raises(StartError, match="the port is in use"):
            async with serve(config(other, amqp=f"127.0.0.1:{server.ports['amqp']}")):
                raise AssertionError("a second server on one port")
        assert not other.exists()


def test_the_lock_is_free_again_after_its_block_and_after_a_crash(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    for _ in range(2):
        with locked_data_dir(directory):
            assert (tmp_path / "data" / "lock").read_text() == f"{os.getpid()}\n"
    (tmp_path / "data" / "lock").write_text("4000000000\n")  # left by a process that is gone
    with locked_data_dir(directory):
        pass
