"""`python -m gateway` is `millrace`."""

from gateway.cli import main

if __name__ == "__main__":  # the demo's parts are processes that import this module again
    main()
