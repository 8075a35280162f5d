"""A broker for tests, in the process of the test: `from millrace.testing import Broker`."""

from gateway.embedded import Broker

__all__ = ["Broker"]
