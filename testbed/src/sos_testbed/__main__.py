"""`python -m sos_testbed`, which is what ./lab runs."""

from sos_testbed.cli import main

if __name__ == "__main__":
    main()
