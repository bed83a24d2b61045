"""One policy of a chaos run: which share, version and route the seed chose, as text and as a table.

Decides what may differ between policies; all else is policy.yaml. Used by the script, which writes it, and by the
ledger, which asks the table what an answer had to be.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pointsman.router.build import build_table
from pointsman.router.table import Table
from pointsman.sidecar import policy_file

TEMPLATE = Path(__file__).with_name("policy.yaml")
WEIGHTS = (0, 5, 30, 100)
THIRD_VERSION = '    - {{name: v3, quality: 0.5, endpoints: [{{address: "127.0.0.1:{port}"}}]}}'
LANE_ROUTE = """---
apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {name: lane}
spec: {match: {intents: [chat], headers: [{name: x-lane, exact: small}]}, targets: [small-chat]}"""


@dataclass(frozen=True, slots=True)
class Variant:
    """What the seed chose: the canary's share in percent, whether version v3 and the route `lane` exist."""

    weight: int = 5
    has_third: bool = False
    has_lane: bool = False

    def text(self, places: Mapping[str, object]) -> str:
        """Return the policy; `places` are ports and folders by the template's names."""
        third = THIRD_VERSION.format(port=places["THIRD_PORT"]) if self.has_third else ""
        chosen = {"WEIGHT": self.weight, "THIRD": third, "LANE": LANE_ROUTE if self.has_lane else ""}
        return string.Template(TEMPLATE.read_text()).substitute({**places, **chosen})

    def __str__(self) -> str:
        more = [name for name, has in (("v3", self.has_third), ("lane", self.has_lane)) if has]
        return "+".join([f"canary {self.weight} %", *more])


def other_than(variant: Variant, draw: Random) -> Variant:
    """Return another variant, drawn."""
    while True:
        drawn = Variant(draw.choice(WEIGHTS), draw.random() < 0.5, draw.random() < 0.5)
        if drawn != variant:
            return drawn


def table_of(path: Path) -> Table:
    """Return the table that the policy file becomes; the harness's own policies have no errors."""
    decoded = policy_file.load(path)
    if decoded.policy is None:
        raise ValueError(f"{path}: " + "; ".join(problem.render() for problem in decoded.problems))
    return build_table(decoded.policy)
