"""The methods of AMQP 0-9-1 with RabbitMQ's extensions: one table, from which both directions are derived.

Names and order are the specification's (amqp0-9-1.pdf, section 1.3); `ticket` and `reserved_*` carry nothing.
"""

from __future__ import annotations

from protocols.amqp.method_codec import (
    METHODS,
    Bit,
    Long,
    LongLong,
    LongString,
    Method,
    Octet,
    Short,
    ShortBytes,
    ShortString,
    Table,
    decode_method,
    method,
)

__all__ = ["METHODS", "Method", "decode_method"]


@method(10, 10, "connection.start")
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Table = {}
    mechanisms: LongString = b""
    locales: LongString = b""


@method(10, 11, "connection.start-ok")
class ConnectionStartOk(Method):
    client_properties: Table = {}
    mechanism: ShortString = ""
    response: LongString = b""
    locale: ShortString = ""


@method(10, 20, "connection.secure")
class ConnectionSecure(Method):
    challenge: LongString = b""


@method(10, 21, "connection.secure-ok")
class ConnectionSecureOk(Method):
    response: LongString = b""


@method(10, 30, "connection.tune")
class ConnectionTune(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 31, "connection.tune-ok")
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 40, "connection.open")
class ConnectionOpen(Method):
    virtual_host: ShortString = ""
    reserved_1: ShortString = ""
    reserved_2: Bit = False


@method(10, 41, "connection.open-ok")
class ConnectionOpenOk(Method):
    reserved_1: ShortString = ""


@method(10, 50, "connection.close")
class ConnectionClose(Method):
    reply_code: Short = 0
    reply_text: ShortString = ""
    class_id: Short = 0
    method_id: Short = 0


@method(10, 51, "connection.close-ok")
class ConnectionCloseOk(Method):
    pass


@method(10, 60, "connection.blocked")
class ConnectionBlocked(Method):
    reason: ShortString = ""


@method(10, 61, "connection.unblocked")
class ConnectionUnblocked(Method):
    pass


@method(10, 70, "connection.update-secret")
class ConnectionUpdateSecret(Method):
    new_secret: LongString = b""
    reason: ShortString = ""


@method(10, 71, "connection.update-secret-ok")
class ConnectionUpdateSecretOk(Method):
    pass


@method(20, 10, "channel.open")
class ChannelOpen(Method):
    reserved_1: ShortString = ""


@method(20, 11, "channel.open-ok")
class ChannelOpenOk(Method):
    reserved_1: LongString = b""


@method(20, 20, "channel.flow")
class ChannelFlow(Method):
    active: Bit = False


@method(20, 21, "channel.flow-ok")
class ChannelFlowOk(Method):
    active: Bit = False


@method(20, 40, "channel.close")
class ChannelClose(Method):
    reply_code: Short = 0
    reply_text: ShortString = ""
    class_id: Short = 0
    method_id: Short = 0


@method(20, 41, "channel.close-ok")
class ChannelCloseOk(Method):
    pass


@method(30, 10, "access.request")
class AccessRequest(Method):
    realm: ShortString = ""
    exclusive: Bit = False
    passive: Bit = False
    active: Bit = False
    write: Bit = False
    read: Bit = False


@method(30, 11, "access.request-ok")
class AccessRequestOk(Method):
    ticket: Short = 1


@method(40, 10, "exchange.declare")
class ExchangeDeclare(Method):
    ticket: Short = 0
    exchange: ShortString = ""
    kind: ShortString = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: Table = {}


@method(40, 11, "exchange.declare-ok")
class ExchangeDeclareOk(Method):
    pass


@method(40, 20, "exchange.delete")
class ExchangeDelete(Method):
    ticket: Short = 0
    exchange: ShortString = ""
    if_unused: Bit = False
    nowait: Bit = False


@method(40, 21, "exchange.delete-ok")
class ExchangeDeleteOk(Method):
    pass


@method(40, 30, "exchange.bind")
class ExchangeBind(Method):
    ticket: Short = 0
    destination: ShortString = ""
    source: ShortString = ""
    routing_key: ShortString = ""
    nowait: Bit = False
    arguments: Table = {}


@method(40, 31, "exchange.bind-ok")
class ExchangeBindOk(Method):
    pass


@method(40, 40, "exchange.unbind")
class ExchangeUnbind(Method):
    ticket: Short = 0
    destination: ShortString = ""
    source: ShortString = ""
    routing_key: ShortString = ""
    nowait: Bit = False
    arguments: Table = {}


@method(40, 51, "exchange.unbind-ok")
class ExchangeUnbindOk(Method):
    pass


@method(50, 10, "queue.declare")
class QueueDeclare(Method):
    ticket: Short = 0
    queue: ShortString = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: Table = {}


@method(50, 11, "queue.declare-ok")
class QueueDeclareOk(Method):
    queue: ShortString = ""
    message_count: Long = 0
    consumer_count: Long = 0


@method(50, 20, "queue.bind")
class QueueBind(Method):
    ticket: Short = 0
    queue: ShortString = ""
    exchange: ShortString = ""
    routing_key: ShortString = ""
    nowait: Bit = False
    arguments: Table = {}


@method(50, 21, "queue.bind-ok")
class QueueBindOk(Method):
    pass


@method(50, 30, "queue.purge")
class QueuePurge(Method):
    ticket: Short = 0
    queue: ShortString = ""
    nowait: Bit = False


@method(50, 31, "queue.purge-ok")
class QueuePurgeOk(Method):
    message_count: Long = 0


@method(50, 40, "queue.delete")
class QueueDelete(Method):
    ticket: Short = 0
    queue: ShortString = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@method(50, 41, "queue.delete-ok")
class QueueDeleteOk(Method):
    message_count: Long = 0


@method(50, 50, "queue.unbind")
class QueueUnbind(Method):
    ticket: Short = 0
    queue: ShortString = ""
    exchange: ShortString = ""
    routing_key: ShortString = ""
    arguments: Table = {}


@method(50, 51, "queue.unbind-ok")
class QueueUnbindOk(Method):
    pass


@method(60, 10, "basic.qos")
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    all_consumers: Bit = False


@method(60, 11, "basic.qos-ok")
class BasicQosOk(Method):
    pass


@method(60, 20, "basic.consume")
class BasicConsume(Method):
    ticket: Short = 0
    queue: ShortString = ""
    consumer_tag: ShortString = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: Table = {}


@method(60, 21, "basic.consume-ok")
class BasicConsumeOk(Method):
    consumer_tag: ShortString = ""


@method(60, 30, "basic.cancel")
class BasicCancel(Method):
    consumer_tag: ShortString = ""
    nowait: Bit = False


@method(60, 31, "basic.cancel-ok")
class BasicCancelOk(Method):
    consumer_tag: ShortString = ""


@method(60, 40, "basic.publish")
class BasicPublish(Method):
    ticket: Short = 0
    exchange: ShortBytes = ""
    routing_key: ShortBytes = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50, "basic.return")
class BasicReturn(Method):
    reply_code: Short = 0
    reply_text: ShortBytes = ""
    exchange: ShortBytes = ""
    routing_key: ShortBytes = ""


@method(60, 60, "basic.deliver")
class BasicDeliver(Method):
    consumer_tag: ShortBytes = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortBytes = ""
    routing_key: ShortBytes = ""


@method(60, 70, "basic.get")
class BasicGet(Method):
    ticket: Short = 0
    queue: ShortString = ""
    no_ack: Bit = False


@method(60, 71, "basic.get-ok")
class BasicGetOk(Method):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortBytes = ""
    routing_key: ShortBytes = ""
    message_count: Long = 0


@method(60, 72, "basic.get-empty")
class BasicGetEmpty(Method):
    reserved_1: ShortString = ""


@method(60, 80, "basic.ack")
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@method(60, 90, "basic.reject")
class BasicReject(Method):
    delivery_tag: LongLong = 0
    requeue: Bit = False


@method(60, 100, "basic.recover-async")
class BasicRecoverAsync(Method):
    requeue: Bit = False


@method(60, 110, "basic.recover")
class BasicRecover(Method):
    requeue: Bit = False


@method(60, 111, "basic.recover-ok")
class BasicRecoverOk(Method):
    pass


@method(60, 120, "basic.nack")
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = False


@method(85, 10, "confirm.select")
class ConfirmSelect(Method):
    nowait: Bit = False


@method(85, 11, "confirm.select-ok")
class ConfirmSelectOk(Method):
    pass


@method(90, 10, "tx.select")
class TxSelect(Method):
    pass


@method(90, 11, "tx.select-ok")
class TxSelectOk(Method):
    pass


@method(90, 20, "tx.commit")
class TxCommit(Method):
    pass


@method(90, 21, "tx.commit-ok")
class TxCommitOk(Method):
    pass


@method(90, 30, "tx.rollback")
class TxRollback(Method):
    pass


@method(90, 31, "tx.rollback-ok")
class TxRollbackOk(Method):
    pass


# What a server sends, and answers to what this one never asks: wrong on a channel.
NOT_FOR_CHANNELS = frozenset(
    (
        ChannelOpenOk, AccessRequestOk, ExchangeDeclareOk, ExchangeDeleteOk,
        ExchangeBindOk, ExchangeUnbindOk, QueueDeclareOk, QueueBindOk,
        QueuePurgeOk, QueueDeleteOk, QueueUnbindOk, BasicQosOk, BasicConsumeOk,
        BasicReturn, BasicDeliver, BasicGetOk, BasicGetEmpty, BasicRecoverOk,
        ConfirmSelectOk, TxSelectOk, TxCommitOk, TxRollbackOk,
        ChannelCloseOk, ChannelFlowOk, BasicCancelOk,
    )
)  # fmt: skip
