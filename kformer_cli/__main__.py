"""`python -m kformer_cli`: the `kformer` command."""

import sys

from kformer_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
