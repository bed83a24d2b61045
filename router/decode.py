"""From located document trees to the policy: strict, and with every problem at once.

Decides which problems refuse the policy and in which order they are told. A document with an error gives no value, yet
its name still counts as known, so that one mistake is named once. Called by the file shell (`check`, `run`, reload).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.router.advice import advise
from pointsman.router.crosscheck import check_names
from pointsman.router.document import Document
from pointsman.router.policy import Policy
from pointsman.router.problem import Code, Problem, Severity, has_errors
from pointsman.router.reading import MAX_PROBLEMS, Reading, policy_of, read_document


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of the documents. `policy` is None if any problem is an error; warnings do not refuse."""

    policy: Policy | None
    problems: tuple[Problem, ...]


def decode(documents: Sequence[Document], *, has_all: bool = True) -> Decoded:
    """Return the policy that the documents make together, and every problem in them, in the order of the documents.

    `has_all` False: a part of the policy could not be read at all, so names that are not found are not reported.
    """
    readings: list[Reading] = []
    problems: list[Problem] = []
    for document in documents:
        reading, found = read_document(document)
        readings.append(reading)
        problems += found
        if len(problems) > MAX_PROBLEMS:
            break
    else:
        problems += check_names(readings, has_all=has_all)
        problems += advise(readings, has_all=has_all)
    files = {document.file: place for place, document in reversed(list(enumerate(documents)))}
    problems = _cut(sorted(problems, key=lambda problem: (files.get(problem.file, 0), problem.line)))
    return Decoded(None if has_errors(problems) else policy_of(readings), tuple(problems))


def _cut(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MAX_PROBLEMS:
        return problems
    last = problems[MAX_PROBLEMS - 1]
    note = f"there are more than {MAX_PROBLEMS} problems; the rest is not listed"
    return [*problems[:MAX_PROBLEMS], Problem(Severity.ERROR, Code.TOO_MANY, last.file, last.line, note=note)]
