"""What the process says, on standard error: one line an event, as text (`key=value`) or as JSON.

1. Everything goes through `structlog`'s processors, also what other packages say with the standard `logging`.
2. A line is an event with values, never a sentence with values in it, so that it can be searched for. Nothing is logged
   per message; what a client can repeat at will is logged at `debug`.
3. Names that clients choose are in lines, so nothing but a traceback goes over the end of one.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from gateway.config import Log


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
    handler = logging.StreamHandler(sys.stderr)
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
