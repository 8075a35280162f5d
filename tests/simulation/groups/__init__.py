"""Consumer groups of both kinds under faults, from a seed: the coordinator as it is, clients and time as models."""
