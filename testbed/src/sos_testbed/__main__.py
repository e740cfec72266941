"""`python -m sos_testbed`, the program behind ./lab."""

from sos_testbed.cli import main

if __name__ == "__main__":
    main()
