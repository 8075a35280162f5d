"""What clients of other brokers ask for that only who leads a queue, or has it, can do: operations by their names.

Who may ask was looked at where the client is. An operation runs once for each time it is asked for: one whose link is
lost meanwhile may have been done. What it raises unexpectedly is logged, and ends nothing but the operation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core_log.errors import LogError
from routing.administration.forwarded import FORWARDED, run_forwarded
from routing.cluster.clients.leader_questions import Answer, NotLed
from routing.errors import BrokerError, NotImplementedYet, StorageUnavailable

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.served import ServedLink
    from routing.cluster.clients.serving import Serving

logger = logging.getLogger(__name__)


class ServedCommands:
    """See the module; of one link."""

    def __init__(self, serving: Serving, broker: Broker, link: ServedLink) -> None:
        self._serving = serving
        self._broker = broker
        self._link = link

    def run(self, request: int, log: str, leader_epoch: int, name: str, arguments: Mapping[str, Any]) -> None:
        """Begin an operation on a queue of a home; it is answered when it is done."""
        if self._serving.home(log, leader_epoch) is None:
            self._link.answer(request, Answer(NotLed()))
        elif name not in FORWARDED:
            self._link.answer(request, Answer(NotImplementedYet(f"no broker does '{name}' for another")))
        else:
            self._broker.spawn(self._run, request, name, arguments)

    async def _run(self, request: int, name: str, arguments: Mapping[str, Any]) -> None:
        try:
            answer = Answer(value=(await run_forwarded(self._broker, name, arguments),))
        except BrokerError as error:
            answer = Answer(error)
        except (LogError, OSError) as error:
            answer = Answer(StorageUnavailable(str(error)))
        except Exception:
            logger.exception("'%s' fails, which another broker has asked for", name)
            answer = Answer(StorageUnavailable(f"'{name}' has failed where the queue is led; the log there says why"))
        self._link.answer(request, answer)
        self._broker.end_turn()
