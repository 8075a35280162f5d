"""Home partitions: the logs that queues live on, what is live there, and how that outlasts a process."""
