"""Consumer groups: who is a member, and which member reads which partitions."""
