"""What brokers of a cluster do for each other's clients."""
