"""`python -m gateway` is `millrace`."""

from gateway.cli import main

main()
