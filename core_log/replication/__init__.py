"""What a replicated log needs to decide; no files, sockets, clock or threads here."""
