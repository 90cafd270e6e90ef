"""`python -m retrotape`."""

from retrotape.cli import main

if __name__ == "__main__":
    main()
