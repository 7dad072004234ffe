"""`python -m millstream`: the command line, where the script `millstream` is not on the PATH."""

from millstream.cli import main

if __name__ == "__main__":
    main()
