"""What brokers of one cluster say to each other. README.md is the specification."""
