"""What the process says, on standard error: one line an event, as text (`key=value`) or as JSON.

1. Everything goes through `structlog`'s processors, also what other packages say with the standard `logging`.
2. A line is an event with values, never a sentence with values in it, so that it can be searched for. Nothing is logged
   per message; what a client can repeat at will is logged at `debug`.
3. Names that clients choose are in lines, so nothing but a traceback goes over the end of one.
4. Who does not read the lines is not waited for: they are lost then, and it is said how many.
"""

from __future__ import annotations

import logging
import select
import sys
from typing import TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from gateway.config import Log

_PATIENCE_MS = 200
"""For which a reader that is busy is waited for."""
_PIECE = 1_000
"""Characters: no more than a pipe takes at once when it says that it can be written to (PIPE_BUF)."""


class _Handler(logging.StreamHandler[TextIO]):
    """Rule 4: a pipe that nobody reads would stop the event loop, and with it the broker."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost = 0
        self._rest = ""
        self._poll: select.poll | None = select.poll()
        try:
            self._poll.register(stream, select.POLLOUT)
        except (OSError, TypeError, ValueError):  # no file, or closed
            self._poll = None

    def emit(self, record: logging.LogRecord) -> None:
        """See the module."""
        try:
            line = self.format(record) + self.terminator
            if self._lost and self._takes():
                said = "%d lines of the log are lost, as they were not read"
                note = logging.LogRecord(__name__, logging.WARNING, "", 0, said, (self._lost,), None)
                line = self._rest + self.format(note) + self.terminator + line
                self._lost, self._rest = 0, ""
            for start in range(0, len(line), _PIECE):
                if not self._takes():
                    self._lost += 1
                    self._rest = self.terminator if start else self._rest
                    return
                self.stream.write(line[start : start + _PIECE])
                self.flush()
        except Exception:
            self.handleError(record)

    def _takes(self) -> bool:
        return self._poll is None or bool(self._poll.poll(0 if self._lost else _PATIENCE_MS))


def configure_logs(config: Log) -> None:
    """Send all log lines to standard error, from the configured level up."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        structlog.processors.UnicodeDecoder(),
    ]
    if config.format == "json":
        rendering: list[Processor] = [structlog.processors.JSONRenderer()]
    else:
        order = ["time", "level", "logger", "event"]
        rendering = [_on_one_line, structlog.processors.KeyValueRenderer(key_order=order, repr_native_str=False)]
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    # It says a line for each request, which etcd gets several of a second.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _on_one_line(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    for key, value in line.items():
        if key != "exception" and isinstance(value, str) and not value.isprintable():
            line[key] = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in value)
    return line
