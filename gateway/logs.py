"""What the process says, on standard error: one line an event, as text (`key=value`) or as JSON.

1. Everything goes through `structlog`'s processors, also what other packages say with the standard `logging`.
2. A line is an event with values, never a sentence with values in it, so that it can be searched for. Nothing is logged
   per message; what a client can repeat at will is logged at `debug`.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.types import Processor

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
        render: Processor = structlog.processors.JSONRenderer()
    else:
        render = structlog.processors.KeyValueRenderer(
            key_order=["time", "level", "logger", "event"], repr_native_str=False
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render], foreign_pre_chain=shared
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
