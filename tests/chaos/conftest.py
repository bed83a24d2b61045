"""The harness's own modules lie beside these tests; it is a program, not a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
