"""Keeping the last record of each key: `compactor.py` says how."""
