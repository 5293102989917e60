"""``python -m ocar_lab``: the command line."""

import sys

from ocar_lab.cli import main

# Worker processes import this file too, under another name.
if __name__ == "__main__":
    sys.exit(main())
