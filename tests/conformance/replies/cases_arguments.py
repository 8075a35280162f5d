"""Arguments of queues and exchanges."""

from __future__ import annotations

from protocols.amqp import methods as m
from tests.conformance.replies.steps import case, declare, exchange

# --- queue arguments
for argument in (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-delivery-limit",
):
    short = argument
    for value in (-1, 0, 1 << 32, 1 << 40, 256, "abc", "5", 1.5, True, None, {"a": 1}):
        case(f"{short}={value!r}", declare(arguments={argument: value}))
for argument, values in {
    "x-dead-letter-exchange": (5, "", "nowhere", None),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "sideways", 5),
    "x-queue-mode": ("lazy", "default", "sideways", 5),
    "x-single-active-consumer": (True, "yes", 1),
    "x-queue-type": ("classic", "sideways", 5),
    "x-queue-version": (1, 2, 3, "2"),
    "x-queue-master-locator": ("client-local", "sideways", 5),
    "x-max-age": ("5D", "abc"),
    "x-stream-max-segment-size-bytes": (1000, "abc"),
    "x-initial-cluster-size": (1,),
    "x-quorum-initial-group-size": (3,),
    "x-max-in-memory-length": (5,),
    "x-own-argument": (5, "abc"),
}.items():
    for value in values:
        case(f"{argument}={value!r}", declare(arguments={argument: value}))
case("x-dead-letter-routing-key without an exchange", declare(arguments={"x-dead-letter-routing-key": "k"}))
case("x-dead-letter-routing-key=5", declare(arguments={"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": 5}))
for kind in ("quorum", "stream"):
    arguments = {"x-queue-type": kind}
    case(f"{kind}: exclusive", declare(durable=True, arguments=arguments))
    case(f"{kind}: not durable", declare(exclusive=False, arguments=arguments))
    case(f"{kind}: auto-delete", declare(exclusive=False, durable=True, auto_delete=True, arguments=arguments))
    for argument in (
        "x-max-priority",
        "x-message-ttl",
        "x-single-active-consumer",
        "x-max-length",
        "x-dead-letter-exchange",
        "x-expires",
        "x-queue-mode",
        "x-overflow",
        "x-delivery-limit",
    ):
        value = {
            "x-single-active-consumer": True,
            "x-dead-letter-exchange": "a",
            "x-queue-mode": "lazy",
            "x-overflow": "reject-publish-dlx",
        }.get(argument, 5)
        case(
            f"{kind}: {argument}",
            declare(f"reply.{kind}", exclusive=False, durable=True, arguments={**arguments, argument: value}),
            m.QueueDelete(queue=f"reply.{kind}"),
        )
case("alternate-exchange=5", exchange(arguments={"alternate-exchange": 5}))
case("an unknown exchange argument", exchange(arguments={"own": 5}))
