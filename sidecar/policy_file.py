"""The policy on disk: files → located document trees, and the policy that they make.

Decides which files of a directory are read, in which order, and when a file is not read at all: too large, not a
regular file, not UTF-8, not YAML. Refuses by reporting problems, never by raising. Called by `check`, `run` and reload.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

import yaml
from pointsman.router.decode import Decoded, decode
from pointsman.router.document import Document
from pointsman.router.problem import Code, Problem, Severity, has_errors, one_line
from pointsman.sidecar.yaml_tree import TOO_DEEP, TreeBuilder

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DOCUMENTS = 5_000
SUFFIXES = (".yaml", ".yml")

_LOSSES = (Code.SYNTAX, Code.UNREADABLE, Code.TOO_MANY)
"""After these, documents are missing: names that are not found may well exist."""
_TAB_INDENT = re.compile(r" *\t")

# libyaml is ten times faster, and the wheels have it; the pure parser gives the same events.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: Path) -> Decoded:
    """Return the policy of a file or of a directory's files, with every problem in order."""
    documents, problems = read(path)
    has_all = not any(problem.code in _LOSSES for problem in problems if problem.severity is Severity.ERROR)
    decoded = decode(documents, has_all=has_all)
    merged = sorted((*problems, *decoded.problems), key=lambda problem: (problem.file, problem.line))
    return Decoded(None if has_errors(merged) else decoded.policy, tuple(merged))


def read(path: Path) -> tuple[tuple[Document, ...], tuple[Problem, ...]]:
    """Return the documents of a file, or of a directory's *.yaml and *.yml in sorted order (hidden ones left out)."""
    problems: list[Problem] = []
    documents: list[Document] = []
    files = _files(path, problems)
    for file in files:
        found = _read_file(file, problems)
        if not found and not any(problem.file == str(file) for problem in problems):
            problems.append(_problem(str(file), 0, Code.UNREADABLE, "the file holds no document", Severity.WARNING))
        documents += found
    if not documents and not has_errors(problems):
        problems.append(_problem(str(path), 0, Code.UNREADABLE, "there is no policy document here"))
    return tuple(documents), tuple(problems)


def _files(path: Path, problems: list[Problem]) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        problems.append(_problem(str(path), 0, Code.UNREADABLE, _reason(error)))
        return []
    return [path / name for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]


def _read_file(file: Path, problems: list[Problem]) -> list[Document]:
    name = str(file)
    try:
        # A FIFO or a device would block or never end; links are followed (a mounted ConfigMap is made of them).
        if not stat.S_ISREG(file.stat().st_mode):
            problems.append(_problem(name, 0, Code.UNREADABLE, "this is not a regular file"))
            return []
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        problems.append(_problem(name, 0, Code.UNREADABLE, _reason(error)))
        return []
    if len(content) > MAX_FILE_BYTES:
        note = f"the file is larger than {MAX_FILE_BYTES // (1024 * 1024)} MiB"
        problems.append(_problem(name, 0, Code.UNREADABLE, note))
        return []
    return _read_content(name, content, problems)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"it cannot be read: {text}"


def _read_content(name: str, content: bytes, problems: list[Problem]) -> list[Document]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.append(_problem(name, line, Code.SYNTAX, f"byte {error.start} is not UTF-8; save the file as UTF-8"))
        return []
    builder = TreeBuilder(name)
    documents: list[Document] = []
    try:
        for document in builder.documents(yaml.parse(text, Loader=_LOADER)):
            documents.append(document)
            if len(documents) > MAX_DOCUMENTS:
                builder.report(document.line, Code.TOO_MANY, f"there are more than {MAX_DOCUMENTS} documents")
                break
    except yaml.YAMLError as error:
        builder.problems.append(_syntax_problem(name, text, error))
    problems += builder.problems
    return documents


def _syntax_problem(name: str, text: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        position = error.position if isinstance(error.position, int) else 0
        line = text.count("\n", 0, position) + 1
        return _problem(name, line, Code.SYNTAX, "there is a character that YAML does not allow; is this a text file?")
    mark = error.problem_mark or error.context_mark if isinstance(error, yaml.MarkedYAMLError) else None
    line = mark.line + 1 if mark is not None else 1
    what = error.problem or error.context if isinstance(error, yaml.MarkedYAMLError) else None
    if what and "nesting depth" in what:  # libyaml's own limit, in newer releases
        return _problem(name, line, Code.SYNTAX, TOO_DEEP)
    note = f"this is not YAML: {one_line(what) if what else 'it cannot be parsed'}"
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and _TAB_INDENT.match(lines[mark.line]):
        note += "; indent with spaces, not with tabs"
    return _problem(name, line, Code.SYNTAX, note)


def _problem(file: str, line: int, code: Code, note: str, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(severity, code, file, line, note=note)
