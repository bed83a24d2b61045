"""The documents against the code: commands and options, links, pages, headers, log messages, printed examples."""

from __future__ import annotations

import argparse
import ast
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pointsman.router import request as request_names
from pointsman.router.entry import LOGGED_REQUEST_HEADERS
from pointsman.router.intent import PATH_INTENTS
from pointsman.router.request import INTERNAL_HEADERS, INTERNAL_PREFIXES
from pointsman.router.table import Reason
from pointsman.sidecar.admin import PAGES
from pointsman.sidecar.cli import COMMANDS, main, make_parser
from pointsman.xds.names import REASON_HEADER, TARGET_HEADER, TRACE_HEADER

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted((*ROOT.glob("*.md"), *DOCS.glob("*.md")))
EXAMPLE_COMMANDS = ("check", "explain")
"""Commands whose printed examples are run again: they start nothing."""


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_of(path: Path) -> str:
    """The document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(path), flags=re.DOTALL | re.MULTILINE)


def blocks_of(path: Path) -> Iterator[list[str]]:
    """The lines of each code block."""
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text_of(path), flags=re.DOTALL | re.MULTILINE):
        yield block.splitlines()


def column(page: str, heading: str, *, after: str = "") -> list[str]:
    """The first cells of the table whose first heading that is, in the text after `after`."""
    lines = page[page.index(after) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(line.split("|")[1].strip())
    return rows


def code_words(cells: list[str]) -> list[str]:
    """What stands in back quotes in the cells."""
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def slug(heading: str) -> str:
    """A heading's anchor, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links() -> Iterator[tuple[Path, str]]:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(document)):
            if not target.startswith(("http://", "https://")):
                yield document, target


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for document, target in links():
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists():
            broken.append(f"{document.relative_to(ROOT)}: {target}: no such file")
        elif anchor and anchor not in {slug(h) for h in re.findall(r"^#+ (.+)$", prose_of(path), re.MULTILINE)}:
            broken.append(f"{document.relative_to(ROOT)}: {target}: no such heading")
    assert not broken, "\n".join(broken)


def test_every_document_is_in_an_index() -> None:
    listed = text_of(DOCS / "README.md") + text_of(ROOT / "README.md")
    assert [] == [path.name for path in DOCUMENTS if path.name != "README.md" and path.name not in listed]


def test_commands_page_has_every_command_in_the_parser_and_no_other() -> None:
    found = re.findall(r"^## pointsman (\S+)$", text_of(DOCS / "commands.md"), re.MULTILINE)
    assert sorted(name for name, _, _ in COMMANDS) == sorted(found)


@pytest.mark.parametrize("command", [name for name, _, _ in COMMANDS])
def test_commands_page_lists_exactly_the_options_of(command: str) -> None:
    actions = make_parser()._subparsers._group_actions[0].choices[command]._actions  # type: ignore[union-attr,index]
    options = {
        word for action in actions if not isinstance(action, argparse._HelpAction) for word in action.option_strings
    }
    page = text_of(DOCS / "commands.md")
    listed = {word.split()[0] for word in code_words(column(page, "option", after=f"## pointsman {command}\n"))}
    assert options == listed


def printed_examples() -> Iterator[tuple[str, str, list[str]]]:
    """Document, command line, and the lines that it is said to print."""
    for document in (ROOT / "README.md", DOCS / "commands.md"):
        for block in blocks_of(document):
            for number, line in enumerate(block):
                words = line.removeprefix("$ ").split()
                is_run = line.startswith("$ pointsman ") and words[1] in EXAMPLE_COMMANDS and "manifests/" in line
                if is_run and "|" not in words:
                    rest = block[number + 1 :]
                    end = next((n for n, later in enumerate(rest) if later.startswith("$ ") or not later), len(rest))
                    yield document.name, line.removeprefix("$ pointsman "), rest[:end]


@pytest.mark.parametrize(("document", "line", "expected"), list(printed_examples()))
def test_example_prints_what_the_document_says(
    document: str, line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`…` in a document stands for anything within a line."""
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(shlex.split(line))
    wanted = "\n".join(".*".join(re.escape(part) for part in shown.split("…")) for shown in expected)
    assert re.fullmatch(wanted, printed.getvalue().rstrip("\n")), f"{document}: {line}\n{printed.getvalue()}"


def test_there_are_examples_to_run() -> None:
    assert {"README.md", "commands.md"} == {document for document, _, _ in printed_examples()}


def test_headers_page_lists_every_request_header_that_the_code_reads() -> None:
    page = text_of(DOCS / "headers.md")
    listed = set(code_words(column(page, "header", after="## Request headers")))
    named = {value for name, value in vars(request_names).items() if name.endswith(("_HEADER", "_ALIAS"))}
    assert set() == (named | set(LOGGED_REQUEST_HEADERS)) - listed


def test_headers_page_lists_every_internal_header() -> None:
    page = text_of(DOCS / "headers.md")
    assert [] == [name for name in (*INTERNAL_PREFIXES, *INTERNAL_HEADERS) if f"`{name}" not in page]


def test_headers_page_lists_exactly_the_answer_headers_and_reasons() -> None:
    page = text_of(DOCS / "headers.md")
    answers = code_words(column(page, "header", after="## Answer headers"))
    assert [TARGET_HEADER, REASON_HEADER, TRACE_HEADER] == answers
    assert {reason.value for reason in Reason} == set(code_words(column(page, "reason")))


def test_headers_page_lists_exactly_the_paths_that_imply_an_intent() -> None:
    page = text_of(DOCS / "headers.md")
    listed = {}
    for line in page[page.index("### Intent from the path") : page.index("### Class by numbers")].splitlines():
        if line.startswith("| `/"):
            listed |= dict.fromkeys(code_words([line]), line.strip("| ").rpartition("|")[2].strip())
    assert {path: intent.value for path, intent in PATH_INTENTS.items()} == listed


def test_operations_page_lists_exactly_the_admin_pages() -> None:
    assert sorted(PAGES) == sorted(code_words(column(text_of(DOCS / "operations.md"), "page")))


def test_operations_page_lists_exactly_the_log_messages() -> None:
    logged = set()
    for path in (ROOT / "sidecar").glob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "event":
                logged |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    assert logged == set(code_words(column(text_of(DOCS / "operations.md"), "message")))


def test_operations_page_lists_files_of_the_state_directory() -> None:
    code = text_of(ROOT / "sidecar" / "state_dir.py")
    listed = code_words(column(text_of(DOCS / "operations.md"), "file"))
    assert [] == [name for name in listed if f'"{name}"' not in code]


def test_contributing_page_names_targets_that_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"(?:`|^)make ([a-z-]+)", text_of(path), re.MULTILINE)}
    assert named
    assert set() == named - targets
