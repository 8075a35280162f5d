"""Who is a member, who decides, and which replicas and leaders logs have."""
