"""`python -m pointsman.sidecar`: the same program as `pointsman`."""

import sys

from pointsman.sidecar.cli import main

sys.exit(main())
