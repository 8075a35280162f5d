"""The clients of the native protocol, with an event loop and without one."""
