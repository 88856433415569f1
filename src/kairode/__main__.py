"""`python -m kairode` is the command `kairode`."""

from kairode.cli import main

if __name__ == "__main__":
    main()
