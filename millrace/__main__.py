"""`python -m millrace` is `millrace`."""

from gateway.cli import main

if __name__ == "__main__":
    main()
