"""`python -m sparsepipe` is the `sparsepipe` command."""

import sys

from .cli import main

sys.exit(main())
