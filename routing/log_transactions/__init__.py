"""Transactions of producers that write to topics before they commit: see `coordinator.py`."""
