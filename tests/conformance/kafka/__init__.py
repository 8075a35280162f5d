"""What Kafka's own clients are put through: see `__main__`."""
