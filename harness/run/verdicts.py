"""From results as they come to results as they are told: `blocked` is computed here, from the results alone."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.properties import Property
from assay.run.events import RED

FAILED = RED | {"blocked", "waived"}  # a waived foundation failed all the same


def foundations(result: Mapping[str, Any], properties: Mapping[str, Property]) -> list[str]:
    """Ids of the cases that this one rests on: same implementation, device and dtype."""
    tail = result["id"][len(result["property"]):]
    known = properties.get(result["property"])
    return [f"{below}{tail}" for below in (known.rests_on if known else ())]


class Verdicts:
    """Turns a fail into blocked where a foundation failed too: holds it back until its foundations are known."""

    def __init__(self, properties: Mapping[str, Property], waiting: Iterable[str],
                 kept: Sequence[Mapping[str, Any]] = ()) -> None:
        self._properties = properties
        self._waiting_for = set(waiting)
        self._status: dict[str, str] = {one["id"]: one["status"] for one in kept}
        self._held: list[dict[str, Any]] = []

    def add(self, result: dict[str, Any]) -> list[dict[str, Any]]:
        """Results that can be told now that this one is known."""
        self._status[result["id"]] = result["status"]
        self._waiting_for.discard(result["id"])
        self._held.append(result)
        told = [held for held in self._held if self._known(held)]
        self._held = [held for held in self._held if held not in told]
        return [self._told(held) for held in told]

    def rest(self) -> list[dict[str, Any]]:
        """What was still held when the run ended early."""
        held, self._held = self._held, []
        return [self._told(one) for one in held]

    def _known(self, result: Mapping[str, Any]) -> bool:
        below = foundations(result, self._properties)
        return result["status"] != "fail" or not any(id in self._waiting_for for id in below)

    def _told(self, result: dict[str, Any]) -> dict[str, Any]:
        below = [id for id in foundations(result, self._properties) if self._status.get(id) in FAILED]
        if result["status"] != "fail" or not below:
            return result
        return {**result, "status": "blocked", "blocked_by": below}
