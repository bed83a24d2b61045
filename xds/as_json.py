"""Rendered resources as readable JSON, Anys opened.

For `pointsman render` and for golden tests; not on any hot path.
"""

from __future__ import annotations

import json

from google.protobuf import json_format
from pointsman.xds.api import message_pool
from pointsman.xds.render import Rendered


def resources_json(rendered: Rendered) -> str:
    """Return the resources by type, in rendering order."""
    groups = {
        "clusters": rendered.clusters,
        "endpoints": rendered.assignments,
        "listeners": rendered.listeners,
        "routes": rendered.routes,
    }
    pool = message_pool()
    return json.dumps(
        {
            name: [
                json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
                for message in messages
            ]
            for name, messages in groups.items()
        },
        indent=2,
    )
