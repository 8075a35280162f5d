"""What several test folders and the benchmarks share: a broker in a process of its own."""

from tests.support.broker_process import DOORS, HOST, BrokerProcess, broker_process

__all__ = ["DOORS", "HOST", "BrokerProcess", "broker_process"]
