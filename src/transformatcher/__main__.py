"""``python -m transformatcher``: the command line → exit code."""

import sys

from transformatcher.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
