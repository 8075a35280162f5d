"""Where Millrace answers differently from RabbitMQ, and why: the first pattern that fits the name of a case counts."""

from __future__ import annotations

from fnmatch import fnmatchcase

SILENCE = "RabbitMQ closes without a word (after 3 s); here the peer is told why"
CRASH = "RabbitMQ's connection process fails without a word, or with an internal error; here the peer is told why"

KNOWN: dict[str, str] = {
    "a method of an unknown class": CRASH,
    "an unknown method*": CRASH,
    "a table with an unknown type": CRASH,
    "properties that are cut short": CRASH,
    "reply-to:*address*not there": CRASH,
    "unknown property flags": "RabbitMQ ignores properties that do not exist; here they are a syntax error",
    "a body that is announced too large": "refused when it is announced, RabbitMQ takes the whole body first",
    "stop deliveries": "channel.flow stops deliveries here, RabbitMQ does not implement it any more",
    "an unknown mechanism": SILENCE,
    "mechanism *": SILENCE,
    "PLAIN with*": SILENCE,
    "AMQPLAIN *": SILENCE,
    "a frame_max that is too *": SILENCE,
    "a channel_max that is too large": SILENCE,
    "no frame_max": "0 stands for what was offered; RabbitMQ takes it for more than that",
    "* before the login": SILENCE,
    "open before tune-ok": SILENCE,
    "the protocol header twice": SILENCE,
    "AMQP 0-?": "RabbitMQ also speaks 0-8 and 0-9; here the answer is the version spoken",
    **dict.fromkeys(["stream: x-max-age='D'", "stream: x-max-age=''"], CRASH),
    **dict.fromkeys(
        [f"stream: x-stream-offset={wrong}" for wrong in ("'abc'", "'FIRST'", "''", "True", "{'a': 1}")], CRASH
    ),
    "stream: x-stream-offset=None": "a void offset asks the server to remember the position, as in LavinMQ",
}

SUPERSET = "works here with every kind of queue"
KNOWN |= {
    "x-delivery-limit=*": SUPERSET,
    "quorum: exclusive": SUPERSET,
    "quorum: not durable": SUPERSET,
    "quorum: auto-delete": SUPERSET,
    "quorum: x-max-priority": SUPERSET,
    "quorum: no name": SUPERSET,
    "quorum: exclusive consumer": SUPERSET,
    "quorum: global prefetch": SUPERSET,
    "quorum: delete if *": SUPERSET,
    "quorum: x-delivery-limit='5'": "a limit that is no number is refused",
    "classic: x-dead-letter-strategy": SUPERSET,
    "queue again: x-queue-leader-locator, *": "classic queues take it here, as in RabbitMQ from 4.0 on",
    "a consumer hears that its queue is gone": "basic.cancel precedes delete-ok here",
}

NOT_IN_CASES: dict[str, str] = {
    "a limited queue with priorities drops the oldest of the lowest":
        "RabbitMQ drops from the head, so the most urgent",
    "x-max-length 0 with reject-publish takes what a waiting consumer can have": "RabbitMQ refuses everything",
    "a mandatory direct reply that arrives is not returned": "RabbitMQ 3.10 delivers it and returns it as well",
    "direct replies have rising delivery tags": "in RabbitMQ the tag of each is 1; nobody can acknowledge them",
    "the default exchange may be an alternate exchange": "in RabbitMQ nothing is ever routed by it",
    "a queue bound to a consistent hash twice has the weight of both": "RabbitMQ's plugin heeds the first only",
    "policies may say all that arguments say": "RabbitMQ has no max-priority or consumer-timeout there",
    "exchanges of the type x-jms-topic are refused with 503":
        "RabbitMQ's plugin is for its JMS client alone, which sends selectors as compiled terms of Erlang",
    "regular expressions of permissions and policies are RE2's":
        "RabbitMQ's are PCRE's, which may take for ever over a name that a client has chosen",
    "messages expire on time wherever they stand": "in RabbitMQ those behind one that lives longer wait for it",
    "a delayed message is routed when it is published":
        "RabbitMQ's plugin routes it when it is due: `mandatory` means nothing there, bindings may have come and gone",
    "x-delay stays as it was published": "RabbitMQ's plugin turns its sign; here properties keep their bytes",
    "a delay may be longer than 49 days": "RabbitMQ's plugin takes such a message for one without",
    "a dead letter is not delayed, whatever its x-delay":
        "by RabbitMQ's plugin it is if the dead letter exchange is the first delayed one on its way",
    "a full queue that refuses publishes takes dead letters": "RabbitMQ's classic queues lose them",
    "a transaction that does not fit into a queue that refuses publishes takes no effect":
        "RabbitMQ answers 406 as well, and the queue has what did fit",
    "a message forgets the keys of BCC when it dies": "RabbitMQ routes dead letters by them; they are not stored here",
    "a first delivery has no x-delivery-count": "RabbitMQ's quorum queues say 0; absent costs nothing",
}  # fmt: skip
"""What no single answer shows: what is otherwise here, and why."""


def reason(name: str) -> str | None:
    """Why the answer to a case differs; None if it should not."""
    return next((reason for pattern, reason in KNOWN.items() if fnmatchcase(name, pattern)), None)
