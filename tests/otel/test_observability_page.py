"""docs/observability.md against the tables that it describes."""

from __future__ import annotations

from pathlib import Path

from pointsman.otel import names
from pointsman.otel.genai_span import NO_ANSWER, OPERATIONS
from pointsman.otel.instruments import INSTRUMENTS

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"


def rows(first_column: str) -> list[list[str]]:
    """Return the cells of the table whose first heading that is, without its head."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return found


def test_page_lists_every_span_attribute_with_its_type():
    declared = [
        [a.name, a.type.value, a.source, a.meaning.replace("`", "").replace("|", "")] for a in names.SPAN_ATTRIBUTES
    ]
    assert declared == rows("attribute")


def test_page_lists_every_metric_with_type_unit_labels_and_meaning():
    declared = [
        [i.name, i.kind.value, i.unit, ", ".join(i.labels) or "–", i.meaning.replace("`", "")] for i in INSTRUMENTS
    ]
    assert declared == rows("metric")


def test_page_lists_every_operation():
    assert list(dict.fromkeys(OPERATIONS.values())) == [cells[0] for cells in rows("operation")]


def test_page_lists_every_error_type_of_a_flag():
    assert [list(pair) for pair in NO_ANSWER.items()] == rows("Envoy's flag")


def test_page_lists_every_event():
    assert [cells[0] for cells in rows("event")] == [names.EVENT_FIRST_CHUNK, names.EVENT_RETRY]
