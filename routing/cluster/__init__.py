"""A broker as one of several: who is a member, who decides, and where things are. No protocol knows of it."""
