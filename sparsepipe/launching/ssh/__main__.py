"""`python -m sparsepipe.launching.ssh`: the ssh launcher's own process (controller.py)."""

import sys

from .controller import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
