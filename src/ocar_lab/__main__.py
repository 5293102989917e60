"""``python -m ocar``: the command line."""

import sys

from ocar_lab.cli import main

# Worker processes import this file under another name.
if __name__ == "__main__":
    sys.exit(main())
