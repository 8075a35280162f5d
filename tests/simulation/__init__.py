"""The cluster in one process: what it stands on as models, with faults that a test chooses."""
