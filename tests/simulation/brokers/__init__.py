"""Whole brokers, their links, etcd and clients in one event loop, in virtual time, under faults drawn from a seed."""
