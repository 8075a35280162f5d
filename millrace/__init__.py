"""The public names of Millrace's native protocol: `from millrace import Producer, Consumer`.

`Client`, `Producer`, `TransactionalProducer` and `Consumer` are for asyncio and trio programs; those that begin with
"Blocking" need no event loop.
"""

from protocols.native.clients.blocking import BlockingClient, FetchResult, TopicDescription
from protocols.native.clients.blocking_consumer import BlockingConsumer
from protocols.native.clients.blocking_group import BlockingGroupConsumer, BlockingRebalanceListener
from protocols.native.clients.blocking_producer import BlockingDelivery, BlockingProducer
from protocols.native.clients.blocking_transactional import BlockingTransactionalProducer
from protocols.native.clients.client import Client, LinkConfig
from protocols.native.clients.client_tls import tls_context
from protocols.native.clients.consumer import Consumer
from protocols.native.clients.hooks import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
from protocols.native.clients.membership import RebalanceListener
from protocols.native.clients.once import MemoryOnceStore, OnceStore, SqliteOnceStore, once
from protocols.native.clients.parallel import process_in_parallel
from protocols.native.clients.producer import Producer
from protocols.native.clients.producer_batches import Delivery
from protocols.native.clients.records import ConsumerRecord, RecordMetadata
from protocols.native.clients.transactional import TransactionalProducer
from protocols.native.errors import (
    AuthenticationFailed,
    BatchTooLarge,
    Blocked,
    BufferFull,
    ConnectionLost,
    DeliveryTimedOut,
    DeserializationFailed,
    ErrorCode,
    FencedInstance,
    LogTruncated,
    MillraceError,
    NotAMember,
    NotFound,
    NotLeader,
    OffsetOutOfRange,
    PreconditionFailed,
    ProducerFenced,
    ProtocolError,
    RequestTimedOut,
    StorageUnavailable,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
    WrongTransactionState,
)

__all__ = [
    "AuthenticationFailed",
    "BatchTooLarge",
    "Blocked",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingDelivery",
    "BlockingGroupConsumer",
    "BlockingProducer",
    "BlockingRebalanceListener",
    "BlockingTransactionalProducer",
    "BufferFull",
    "Client",
    "ConnectionLost",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "Delivery",
    "DeliveryTimedOut",
    "DeserializationFailed",
    "ErrorCode",
    "FencedInstance",
    "FetchResult",
    "LinkConfig",
    "LogTruncated",
    "MemoryOnceStore",
    "MillraceError",
    "NotAMember",
    "NotFound",
    "NotLeader",
    "OffsetOutOfRange",
    "OnceStore",
    "PreconditionFailed",
    "Producer",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProtocolError",
    "RebalanceListener",
    "RecordMetadata",
    "RequestTimedOut",
    "SqliteOnceStore",
    "StorageUnavailable",
    "TopicDescription",
    "TransactionAborted",
    "TransactionalProducer",
    "UnknownPartition",
    "UnknownTopic",
    "WrongTransactionState",
    "once",
    "process_in_parallel",
    "tls_context",
]
