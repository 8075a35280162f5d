"""Small programs, each of which runs by itself. A package, so that no other library's of that name is found instead."""
