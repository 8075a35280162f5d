"""Metadata stores: one map of small values, changed by compare-and-swap, that everybody holds in memory; no sockets."""
