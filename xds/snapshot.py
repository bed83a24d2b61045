"""A snapshot: all that one group of Envoys is to hold, immutable, versioned by content, checked before anyone sees it.

Decides whether a set of resources may be published: every name that one resource uses in another must exist (xDS
point 26). Refuses, with all problems at once, what does not fit together; the caller keeps the snapshot it had.
Versions are content hashes, so they survive a restart (xDS point 5). Built from rendered messages, published through
ads.py, read by stream.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from google.protobuf.message import DecodeError
from pointsman.xds import api
from pointsman.xds.references import NO_REFERENCES, References, ResourceMessage, read_references

_VERSION_BYTES = 8
"""Length of a content hash: 64 bits, enough to tell the contents of one name apart."""


class ResourceType(StrEnum):
    """A type URL served here; the members stand in dependency order."""

    CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
    ENDPOINTS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
    ROUTES = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

    @property
    def label(self) -> str:
        """Return the short name for logs, metrics and status: CDS, EDS, LDS, RDS."""
        return _LABELS[self]


TYPE_ORDER = (ResourceType.CLUSTER, ResourceType.ENDPOINTS, ResourceType.LISTENER, ResourceType.ROUTES)
"""The order in which one push leaves (xDS point 25): what is named goes before what names it."""

_LABELS = dict(zip(TYPE_ORDER, ("CDS", "EDS", "LDS", "RDS"), strict=True))
_NOUNS = dict(zip(TYPE_ORDER, ("cluster", "assignment", "listener", "route configuration"), strict=True))


class SnapshotRefused(Exception):
    """The resources do not fit together; `problems` lists all that was found."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("snapshot refused: " + "; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Resource:
    """One rendered resource: `body` is the serialised message, `version` the hash of it."""

    name: str
    type_url: ResourceType
    body: bytes = field(repr=False)
    version: str
    ttl_s: float | None = None
    """How long clients that know lifetimes keep it without hearing from the server; None: for ever (xDS point 36)."""

    @classmethod
    def of(cls, message: ResourceMessage, *, ttl_s: float | None = None) -> Resource:
        """Return the message as a resource, serialised deterministically."""
        body = message.SerializeToString(deterministic=True)
        # Another lifetime is another content: the client has to be told of it.
        version = _hash(body if ttl_s is None else body + f"\0{ttl_s}".encode())
        return cls(_name_of(message), _type_of(message), body, version, ttl_s)

    def parse(self) -> ResourceMessage:
        """Return the message; google's DecodeError when the body does not parse."""
        return _CLASSES[self.type_url].FromString(self.body)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable, consistent set of resources; made by `build`, never by hand."""

    resources: Mapping[ResourceType, Mapping[str, Resource]] = field(repr=False)
    references: Mapping[ResourceType, Mapping[str, References]] = field(repr=False)
    type_versions: Mapping[ResourceType, str]
    version: str

    @classmethod
    def build(
        cls,
        clusters: Iterable[api.Cluster | Resource] = (),
        assignments: Iterable[api.ClusterLoadAssignment | Resource] = (),
        listeners: Iterable[api.Listener | Resource] = (),
        routes: Iterable[api.RouteConfiguration | Resource] = (),
        *,
        static_clusters: Collection[str] = (),
        previous: Snapshot | None = None,
    ) -> Snapshot:
        """Return the checked snapshot, or raise SnapshotRefused with all problems.

        `static_clusters` are clusters of the bootstrap that routes may name. Resources of `previous` whose content is
        equal are reused, together with what was read from them.
        """
        given: tuple[Iterable[ResourceMessage | Resource], ...] = (clusters, assignments, listeners, routes)
        problems: list[str] = []
        resources: dict[ResourceType, Mapping[str, Resource]] = {}
        references: dict[ResourceType, Mapping[str, References]] = {}
        for kind, items in zip(TYPE_ORDER, given, strict=True):
            collected = _collect(kind, items, previous=previous, problems=problems)
            resources[kind] = MappingProxyType({name: resource for name, (resource, _) in collected.items()})
            references[kind] = MappingProxyType({name: found for name, (_, found) in collected.items()})
        problems.extend(_dangling(references, frozenset(static_clusters)))
        if problems:
            raise SnapshotRefused(tuple(problems))
        type_versions = {kind: version_of(resources[kind].values()) for kind in TYPE_ORDER}
        version = _hash("".join(type_versions.values()).encode())
        return cls(MappingProxyType(resources), MappingProxyType(references), MappingProxyType(type_versions), version)

    def of(self, kind: ResourceType) -> Mapping[str, Resource]:
        """Return the resources of one type by name."""
        return self.resources[kind]

    def references_of(self, kind: ResourceType, name: str) -> References:
        """Return what the named resource needs; nothing when there is no such resource."""
        return self.references[kind].get(name, NO_REFERENCES)


_CLASSES: Mapping[ResourceType, type[ResourceMessage]] = {
    ResourceType.CLUSTER: api.Cluster,
    ResourceType.ENDPOINTS: api.ClusterLoadAssignment,
    ResourceType.LISTENER: api.Listener,
    ResourceType.ROUTES: api.RouteConfiguration,
}


def _name_of(message: ResourceMessage) -> str:
    return message.cluster_name if isinstance(message, api.ClusterLoadAssignment) else message.name


def _type_of(message: ResourceMessage) -> ResourceType:
    return ResourceType(api.type_url(message))


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_VERSION_BYTES).hexdigest()


def version_of(resources: Iterable[Resource]) -> str:
    """Return the version of a set of resources of one type, whatever their order."""
    # NUL cannot occur in a hash, so entries cannot run together.
    return _hash("".join(sorted(f"{resource.name}\0{resource.version}\0" for resource in resources)).encode())


def _collect(
    kind: ResourceType,
    items: Iterable[ResourceMessage | Resource],
    *,
    previous: Snapshot | None,
    problems: list[str],
) -> dict[str, tuple[Resource, References]]:
    known = previous.resources[kind] if previous is not None else {}
    collected: dict[str, tuple[Resource, References]] = {}
    for item in items:
        resource = item if isinstance(item, Resource) else Resource.of(item)
        where = f'{_NOUNS[kind]} "{resource.name}"'
        if resource.type_url is not kind:
            problems.append(f"{where}: found type {resource.type_url.label}, expected {kind.label}")
            continue
        if not resource.name:
            problems.append(f"a {_NOUNS[kind]} has no name; give it one")
            continue
        if resource.name in collected:
            problems.append(f"{where}: given twice; names must be unique within a type")
            continue
        same = known.get(resource.name)
        if previous is not None and same is not None and same == resource:
            collected[resource.name] = (same, previous.references[kind][resource.name])
            continue
        try:
            message = resource.parse() if isinstance(item, Resource) else item
        except DecodeError:
            problems.append(f"{where}: the body does not parse as {kind.value.rpartition('.')[2]}")
            continue
        found = read_references(message)
        problems.extend(f"{where}: {problem}" for problem in found.problems)
        collected[resource.name] = (resource, found)
    return collected


def _dangling(references: Mapping[ResourceType, Mapping[str, References]], static: frozenset[str]) -> list[str]:
    """Return a line for each name that is used and missing, and for each assignment that no cluster uses."""
    problems: list[str] = []
    clusters = references[ResourceType.CLUSTER].keys() | static
    assignments = references[ResourceType.ENDPOINTS].keys()
    routes = references[ResourceType.ROUTES].keys()
    used: set[str] = set()
    for kind in TYPE_ORDER:
        for name, found in references[kind].items():
            where = f'{_NOUNS[kind]} "{name}"'
            used |= found.assignments
            problems.extend(
                f'{where}: names cluster "{missing}", which is not in the snapshot; add the cluster or drop the name'
                for missing in sorted(found.clusters - clusters)
            )
            problems.extend(
                f'{where}: takes its endpoints from "{missing}", which is not in the snapshot; add it, even empty'
                for missing in sorted(found.assignments - assignments)
            )
            problems.extend(
                f'{where}: takes its routes from "{missing}", which is not in the snapshot; add the route configuration'
                for missing in sorted(found.routes - routes)
            )
    problems.extend(
        f'assignment "{name}": no cluster takes its endpoints from it; add the cluster or drop the assignment'
        for name in sorted(assignments - used)
    )
    return problems
