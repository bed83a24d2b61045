"""The rig of this folder's tests."""

from rig import rig

__all__ = ["rig"]
