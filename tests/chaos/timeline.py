"""What held when, in a chaos run: the policies that could be in force, and the faults that documents allow for.

Decides which of them a request may have met. A policy counts from the moment it is written until another one is
settled; a fault from the moment before the harm until traffic was seen to be right again. Pure; written by the script,
read by the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from pointsman.router.table import Table

SETTLING_S = 1.0
"""Envoy's workers and the requests that they had already routed come a little later than its acknowledgement."""


class Rule(Enum):
    """A failure that the documents announce."""

    ENVOY_DIED = "operations.md, When something dies: Envoy crashes, connections break and are refused until it is back"
    STOPPED = "operations.md, Stop: the listener closes; refused until the next run is ready"


@dataclass(frozen=True, slots=True)
class PolicySpell:
    """A policy that Envoy may have served by."""

    table: Table
    text: str
    from_s: float
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class FaultSpell:
    """A time in which a rule applies."""

    rule: Rule
    from_s: float
    until_s: float = math.inf


class Timeline:
    """Spells in order; those that are still open have no end yet."""

    def __init__(self) -> None:
        self._policies: list[PolicySpell] = []
        self._faults: list[FaultSpell] = []

    def policy_written(self, table: Table, text: str, now_s: float) -> None:
        """From now on it may be in force."""
        if not any(spell.text == text and spell.until_s == math.inf for spell in self._policies):
            self._policies.append(PolicySpell(table, text, now_s))

    def policy_settled(self, text: str, now_s: float) -> None:
        """It is the one in force; the others end."""
        self._policies = [
            spell if spell.text == text or spell.until_s < math.inf else replace(spell, until_s=now_s + SETTLING_S)
            for spell in self._policies
        ]

    def fault_began(self, rule: Rule, now_s: float) -> None:
        """From now on the rule allows for failures."""
        self._faults.append(FaultSpell(rule, now_s))

    def faults_ended(self, now_s: float) -> None:
        """Traffic is right again."""
        self._faults = [spell if spell.until_s < math.inf else replace(spell, until_s=now_s) for spell in self._faults]

    def policies(self, from_s: float, until_s: float) -> list[PolicySpell]:
        """Return those that a request of this time may have met."""
        return [spell for spell in self._policies if spell.from_s <= until_s and spell.until_s >= from_s]

    def faults(self, from_s: float, until_s: float) -> list[FaultSpell]:
        """Return those that touch this time."""
        return [spell for spell in self._faults if spell.from_s <= until_s and spell.until_s >= from_s]
