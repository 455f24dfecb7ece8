"""`python -m farstep` is the `farstep` command."""

from farstep.cli import main

if __name__ == "__main__":
    main()
