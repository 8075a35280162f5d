"""The errors the engine raises; each protocol maps them to its own codes in one table.

An error here is the client's or the operator's business. Anything else that escapes the engine is a bug.
"""


class BrokerError(Exception):
    """Base of all errors an adapter must translate; `str()` is a sentence fit for the client."""


class NotFound(BrokerError):
    """No such exchange, queue, topic, partition or consumer."""


class AccessRefused(BrokerError):
    """The name is reserved, the exchange is internal, or the credentials are wrong."""


class Banned(AccessRefused):
    """Somebody has said that this client, user or address is to be kept out."""


class PreconditionFailed(BrokerError):
    """Declared again with other properties, in use, not empty, or an unknown delivery id."""


class NoRoomForQueue(PreconditionFailed):
    """The virtual host has as many queues as it may have."""


class ResourceLocked(BrokerError):
    """An exclusive queue of another connection."""


class NotAllowed(BrokerError):
    """No such virtual host, not for this user, or it takes no more connections."""


class NoPermission(NotAllowed):
    """The user has no permission in the virtual host."""


class InvalidArgument(BrokerError):
    """A name, argument or configuration value that can never work."""


class AlreadyExists(PreconditionFailed):
    """A topic of that name is there already."""


class InvalidName(InvalidArgument):
    """What no topic can be called."""


class InvalidConfig(InvalidArgument):
    """A setting that a topic does not have, or a value that it cannot take."""


class InvalidPartitions(InvalidArgument):
    """So many partitions a topic cannot have."""


class InvalidReplication(InvalidArgument):
    """So many replicas a topic cannot have."""


class InvalidAssignment(InvalidArgument):
    """These brokers cannot have the replicas of a partition."""


class LimitExceeded(BrokerError):
    """A configured limit was reached (size, count or length)."""


class QueueFull(LimitExceeded):
    """A queue refuses what it has no room for. Trying again later may work."""


class StorageUnavailable(BrokerError):
    """The log cannot be written now (disk full, I/O error); nothing was confirmed. Trying again later may work."""


class LedHere(StorageUnavailable):
    """A queue that was led elsewhere is led by this broker from now on, in another object: look again."""


class TimedOut(StorageUnavailable):
    """It is not known yet whether it was done everywhere."""


class NotLeader(StorageUnavailable):
    """Another broker leads the partition, or nobody does at this moment."""


class NotEnoughReplicas(StorageUnavailable):
    """Fewer replicas are in sync than have to be: nothing could be committed now."""


class UnknownExchangeType(InvalidArgument):
    """An exchange kind that does not exist here."""


class NotImplementedYet(BrokerError):
    """A known feature that this version does not have; refused rather than ignored."""
