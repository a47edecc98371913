"""`python -m mpadam ...` is `mpadam ...`; torchrun starts training so."""

import sys

from mpadam.cli import main

sys.exit(main())
