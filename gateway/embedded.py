"""A broker within another program, in a thread of its own: for tests, and for programs that bring theirs along.

    with Broker(memory=True) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url("amqp")))

It is the broker that `millrace serve` runs.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec
import trio

from core_log.files import Files, MemoryFiles
from gateway.config import Config, Listen
from gateway.errors import StartError, first_error
from gateway.server import serve

DOORS = ("amqp", "mqtt", "native", "kafka")
"""Those that are open unless a configuration is given."""
_SCHEMES = {"websocket": "ws", "websockets": "wss"}
"""Of other doors the name is that of the scheme."""


class Broker:
    """Runs from `start` to `stop`, or for a `with` block. It may be started again, and then has what it had before.

    Everything durable lies in the directory `data_dir` or, with `memory`, in this object. `config` says the rest, but
    for its own `data_dir`; without it `DOORS` are open, each on any free port of the loopback interface. Logs of the
    program are its own to configure (structlog).
    """

    def __init__(self, data_dir: str = "", *, memory: bool = False, config: Config | None = None) -> None:
        if bool(data_dir) == memory:
            raise ValueError("either data_dir or memory")
        if memory and config is not None and config.cluster.name:
            raise ValueError("a member of a cluster needs a data_dir")
        if config is None:
            config = Config(listen=Listen(**dict.fromkeys(DOORS, "127.0.0.1:0")))
        self._config = msgspec.structs.replace(config, data_dir=data_dir)
        self._files: Files | None = MemoryFiles() if memory else None
        self.ports: dict[str, int] = {}
        """The port of each door that is open."""
        self._thread: threading.Thread | None = None
        self._stop = trio.CancelScope()
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Return when clients may connect. Raises StartError where `millrace serve` would refuse."""
        if self._thread is not None:
            raise StartError("this broker runs already")
        self._stop, self._token, self._failure = trio.CancelScope(), Future(), None
        self._thread = threading.Thread(target=self._run, name="millrace", daemon=True)
        self._thread.start()
        try:
            self._token.result()
        except BaseException:
            self._thread = None
            raise

    def stop(self) -> None:
        """Stop as `millrace serve` does after SIGTERM, and return when all is written. Raises what it died of, if it
        did.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(trio.RunFinishedError):
            self._token.result().run_sync_soon(self._stop.cancel)
        thread.join()
        if self._failure is not None:
            raise self._failure

    def address(self, door: str) -> str:
        """Where a door is, as HOST:PORT. Raises KeyError for one that is not open."""
        port = self.ports[door]
        host = getattr(self._config.listen, door).rpartition(":")[0]
        return f"{host}:{port}"

    def url(self, door: str) -> str:
        """The same with a scheme, such as `amqp://127.0.0.1:40123`. Raises KeyError."""
        return f"{_SCHEMES.get(door, door)}://{self.address(door)}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            if self._token.done():
                self._failure = error
            else:
                self._token.set_exception(first_error(error))

    async def _serve(self) -> None:
        with self._stop:
            async with serve(self._config, files=self._files) as server:
                self.ports = dict(server.ports)
                self._token.set_result(trio.lowlevel.current_trio_token())
                await trio.sleep_forever()
