"""Names across documents: everything that is named exists, once, and fits where it is named.

Refuses unknown models, versions and classes, names given twice, more than one Settings, canaries and fallbacks that
cannot work. Reads the trees, not the values, so that a mistake elsewhere in a document hides none of these; what the
schema has refused already (a name that is no text) is passed over. Called by decode.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pointsman.router.document import Document, Items, Step, Unreadable, Value, dotted
from pointsman.router.problem import Code, Problem, Severity, nearest_name, shown
from pointsman.router.reading import Reading
from pointsman.router.schema import KINDS

LISTED_NAMES = 8
"""A problem lists this many of the names that would be right."""

Place = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """The names in the policy. A model's versions are None where its list cannot be read.

    `possible` are the names of documents whose kind cannot be read: they may be models.
    `has_all` False: part of the policy is missing, and a name that is not here may well exist.
    """

    versions: Mapping[str, tuple[str, ...] | None]
    aliases: frozenset[str]
    possible: frozenset[str]
    has_all: bool

    def is_unknown(self, model: str) -> bool:
        """Say whether there is certainly no model of that name."""
        return self.has_all and model not in self.versions and model not in self.possible


def check_names(readings: Sequence[Reading], *, has_all: bool = True) -> tuple[Problem, ...]:
    """Return what is wrong with names across the documents."""
    known = _known_names(readings, has_all=has_all)
    problems = list(_repeated(readings))
    for reading in readings:
        if reading.kind == "Route":
            problems += _Route(reading, known).problems()
        elif reading.kind == "AIModelProfile":
            name = reading.name
            if name is not None and known.is_unknown(name):
                problems.append(_unknown(reading, ("metadata", "name"), name, "the name of a model", known.versions))
    return tuple(problems)


def _known_names(readings: Sequence[Reading], *, has_all: bool) -> _Known:
    versions: dict[str, tuple[str, ...] | None] = {}
    aliases: set[str] = set()
    for reading in readings:
        if reading.name is None or reading.kind != "Model":
            continue
        document = reading.document
        items = list(document.items("spec", "versions"))
        names = [document.written("spec", "versions", index, "name") for index, _ in items]
        texts = tuple(name for name in names if name is not None)
        versions[reading.name] = texts if texts and len(texts) == len(names) else None
        for index, _ in items:
            aliases.update(text for _, text in _texts(document, "spec", "versions", index, "accepts"))
    has_all = has_all and not any(isinstance(one.document.at("metadata", "name"), Unreadable) for one in readings)
    possible = frozenset(reading.name for reading in readings if reading.kind is None and reading.name is not None)
    return _Known(versions, frozenset(aliases), possible, has_all)


def _texts(document: Document, *steps: Step) -> Iterator[tuple[Place, str]]:
    """Yield the texts of the list at that place, with their own places."""
    for index, node in document.items(*steps):
        if isinstance(node, Value) and isinstance(node.value, str):
            yield (*steps, index), node.value


def _repeated(readings: Sequence[Reading]) -> Iterator[Problem]:
    first: dict[tuple[str, str], Reading] = {}
    for reading in readings:
        if reading.kind is None or reading.kind not in KINDS or (reading.name is None and reading.kind != "Settings"):
            continue
        # One Settings at most, whatever the names.
        key = (reading.kind, "" if reading.kind == "Settings" else str(reading.name))
        if key not in first:
            first[key] = reading
            continue
        other = first[key].document
        line = other.line_of("metadata", "name")
        what = "there is a Settings already" if reading.kind == "Settings" else "this name is taken already"
        yield _problem(
            reading,
            Code.DUPLICATE_NAME,
            ("metadata", "name"),
            found=None if reading.name is None else shown(reading.name),
            note=f"{what}, at {other.file}:{line}",
        )


class _Route:
    """The checks of one Route."""

    def __init__(self, reading: Reading, known: _Known) -> None:
        self._reading = reading
        self._document = reading.document
        self._known = known
        self._targets = tuple(_texts(self._document, "spec", "targets"))
        self._target_names = tuple(dict.fromkeys(name for _, name in self._targets))

    def problems(self) -> Iterator[Problem]:
        for place, name in self._targets:
            yield from self._model(place, name)
        yield from self._matched_models()
        yield from self._default_class()
        yield from self._canary()
        for index, _ in self._document.items("spec", "fallback"):
            yield from self._fallback(("spec", "fallback", index))

    def _has_known_targets(self) -> bool:
        return bool(self._target_names) and all(name in self._known.versions for name in self._target_names)

    def _model(self, place: Place, name: str) -> Iterator[Problem]:
        if self._known.is_unknown(name):
            yield _unknown(self._reading, place, name, "the name of a model", self._known.versions)

    def _matched_models(self) -> Iterator[Problem]:
        rewrites = self._document.at("spec", "rewriteModel")
        if isinstance(rewrites, Value) and rewrites.value is True:
            return  # any name will do: it is changed on the way
        for place, name in _texts(self._document, "spec", "match", "models"):
            if self._known.is_unknown(name) and name not in self._known.aliases:
                expected = "the name of a model, or a name that a version accepts (or rewriteModel: true)"
                yield _unknown(self._reading, place, name, expected, {*self._known.versions, *self._known.aliases})

    def _default_class(self) -> Iterator[Problem]:
        name = self._document.text("spec", "defaultQos")
        if name is None or not isinstance(self._document.at("spec", "qos"), Items | None):
            return
        classes = [
            self._document.text("spec", "qos", index, "name") for index, _ in self._document.items("spec", "qos")
        ]
        names = [text for text in classes if text is not None]
        if name not in names and len(names) == len(classes):
            expected = "the name of one of the route's qos classes"
            yield _unknown(self._reading, ("spec", "defaultQos"), name, expected, names)

    def _canary(self) -> Iterator[Problem]:
        model = self._document.text("spec", "canary", "model")
        version = self._document.text("spec", "canary", "version")
        if model is None:
            return
        place = ("spec", "canary", "model")
        if model not in self._known.versions:
            yield from self._model(place, model)
        elif self._has_known_targets() and model not in self._target_names:
            expected = f"one of the route's targets ({_listed(self._target_names)})"
            yield _problem(self._reading, Code.CONFLICT, place, shown(model), expected)
        versions = self._known.versions.get(model)
        if version is None or versions is None:
            return
        place = ("spec", "canary", "version")
        if version not in versions:
            yield _unknown(self._reading, place, version, f"a version of {model}", versions)
        elif set(versions) == {version}:
            note = f"{version} is the only version of {model}; a canary needs a stable version beside it"
            yield _problem(self._reading, Code.CONFLICT, place, note=note)

    def _fallback(self, place: Place) -> Iterator[Problem]:
        model = self._document.text(*place, "model")
        if model is not None:
            yield from self._model((*place, "model"), model)
            if self._target_names == (model,):
                note = f"{model} is the route's only target; a rung must lead elsewhere"
                yield _problem(self._reading, Code.CONFLICT, (*place, "model"), note=note)
        version = self._document.text(*place, "version")
        if version is None or not self._has_known_targets():
            return
        versions = [self._known.versions[name] for name in self._target_names]
        names = tuple(dict.fromkeys(name for listed in versions for name in listed or ()))
        if None in versions:
            return
        if version not in names:
            expected = f"a version of the route's targets ({_listed(self._target_names)})"
            yield _unknown(self._reading, (*place, "version"), version, expected, names)
        elif names == (version,):
            note = f"{version} is the targets' only version; a rung must lead elsewhere"
            yield _problem(self._reading, Code.CONFLICT, (*place, "version"), note=note)


def _unknown(reading: Reading, place: Place, name: str, expected: str, known: Collection[str]) -> Problem:
    listed = f"{expected}: {_listed(known)}" if known else f"{expected}, and there is none"
    return _problem(
        reading, Code.UNKNOWN_NAME, place, found=shown(name), expected=listed, nearest=nearest_name(name, known)
    )


def _listed(names: Collection[str]) -> str:
    few = sorted(shown(name)[1:-1] for name in names)[:LISTED_NAMES]
    return ", ".join(few) + (f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else "")


def _problem(
    reading: Reading,
    code: Code,
    place: Place,
    found: str | None = None,
    expected: str | None = None,
    *,
    note: str | None = None,
    nearest: str | None = None,
) -> Problem:
    document = reading.document
    return Problem(
        Severity.ERROR,
        code,
        document.file,
        document.line_of(*place),
        document.title,
        dotted(*place),
        found,
        expected,
        note,
        nearest,
    )
