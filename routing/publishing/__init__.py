"""What becomes of a publish besides being routed: confirms, duplicates, refusals, steps that take effect once."""
