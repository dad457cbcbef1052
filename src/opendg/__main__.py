"""`python -m opendg` is `opendg`."""

from opendg.cli import main

if __name__ == "__main__":
    main()
