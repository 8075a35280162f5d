"""What brokers ask each other for their clients, beside what is said of queues: as MessagePack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from routing.administration import forwarded
from routing.errors import InvalidArgument
from routing.log_transactions import questions as transactions

if TYPE_CHECKING:
    from routing.broker import Broker


class AskRetained(msgspec.Struct, array_like=True, tag="retained"):
    """A page of what is retained: see `LedKeeping.page`."""

    vhost: bytes
    pattern: bytes
    after: bytes | None


class AskRetainedOperation(msgspec.Struct, array_like=True, tag="retained operation"):
    """An operation on what is retained: see `administration/retained.py`."""

    name: str
    vhost: bytes
    pattern: bytes
    limit: int
    start: int


class AskAllTold(msgspec.Struct, array_like=True, tag="all told"):
    """Answer when all that clients have published so far to be retained is where it belongs: see `Keeping`, rule 4."""

    revision: int


class AskWills(msgspec.Struct, array_like=True, tag="wills"):
    """A process is there again that others may have taken for gone: which of its clients' wills are not kept any more?
    See `LedWills.lost`. Each is a virtual host, a name and a connection's number.
    """

    broker: int
    process: int
    wills: list[tuple[bytes, bytes, int]]


class AskOperation(msgspec.Struct, array_like=True, tag="operation"):
    """Have an operation done: see `administration/forwarded.py`. The arguments are MessagePack."""

    name: str
    arguments: bytes


class AskBegin(msgspec.Struct, array_like=True, tag="begin"):
    """A client has connected whose queue is this, of a home: see `ClientsElsewhere.begin`."""

    log: str
    queue_id: int


class TakeOver(msgspec.Struct, array_like=True, tag="take over"):
    """A client has connected elsewhere: see `clients_elsewhere.py`."""

    protocol: str
    vhost: bytes
    name: bytes
    broker: int
    tell: bool = False
    """Whether who asks takes more than yes and no for an answer: brokers of before did not."""


Question = AskRetained | AskRetainedOperation | AskAllTold | AskWills | AskOperation | AskBegin | TakeOver

_questions = msgspec.msgpack.Decoder(Question | transactions.Question)
encode = msgspec.msgpack.Encoder().encode


def text(name: bytes) -> str:
    """A name as the engine has it."""
    return name.decode("utf-8", "surrogateescape")


def name_of(text: str) -> bytes:
    """The inverse."""
    return text.encode("utf-8", "surrogateescape")


async def answer(broker: Broker, body: bytes) -> bytes:
    """What this broker answers. Raises InvalidArgument, and what is raised there."""
    try:
        question: Any = _questions.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"a question that is not understood: {error}") from None
    if not isinstance(question, Question):
        return encode(await transactions.answer_to(broker, question))
    keeping = broker.keeping
    assert keeping is not None
    assert broker.engine is not None
    if isinstance(question, AskRetained):
        after = None if question.after is None else text(question.after)
        return encode(await keeping.page_here(text(question.vhost), text(question.pattern), after))
    if isinstance(question, AskRetainedOperation):
        return encode(await keeping.operate_here(question))
    if isinstance(question, AskAllTold):
        return encode(await keeping.all_told_here(question.revision))
    if isinstance(question, AskWills):
        return encode(await keeping.lost_wills_here(question))
    if isinstance(question, AskOperation):
        return encode(await forwarded.answer_other(broker, question.name, question.arguments))
    if isinstance(question, AskBegin):
        return encode(await broker.engine.elsewhere.begin_here(question.log, question.queue_id))
    return encode(await broker.engine.elsewhere.give_up(question))
