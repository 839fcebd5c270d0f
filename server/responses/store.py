"""Responses that clients may refer to later: a bounded number of bytes, in memory, each user's share apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from ..errors import ApiError
from .types import Item

#: Of all that is kept, one user's is at most one part of so many.
USER_PART = 4


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it came from, as JSON."""

    response_id: str
    owner: str
    response: bytes
    history: bytes  # every item of the conversation until and with this response
    num_inputs: int  # how many of the history's items the request itself brought
    num_outputs: int
    item_ids: tuple[str, ...]  # of the history's items that have one

    @property
    def size(self) -> int:
        return len(self.response) + len(self.history)

    def items(self) -> list[Item]:
        """The whole conversation."""
        found: list[Item] = orjson.loads(self.history)
        return found

    def inputs(self) -> list[Item]:
        """What the request itself brought."""
        items = self.items()
        end = len(items) - self.num_outputs
        return items[end - self.num_inputs : end]


class ResponseStore:
    """The least recently used go first: the user's own, where the user is over a part of ``max_bytes`` of JSON."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}  # by owner
        self._items: dict[str, str] = {}  # item -> the latest response that holds it

    @property
    def num_bytes(self) -> int:
        return sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: StoredResponse) -> None:
        """Keep ``entry``; one that is larger than a user's part is not kept."""
        self._entries[entry.response_id] = entry
        self._sizes[entry.owner] = self._sizes.get(entry.owner, 0) + entry.size
        self._items.update(dict.fromkeys(entry.item_ids, entry.response_id))
        while self._sizes.get(entry.owner, 0) > self._max_bytes // USER_PART:
            self._drop(next(self._of(entry.owner)))
        while self.num_bytes > self._max_bytes:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._drop(next(self._of(largest)))

    def get(self, response_id: str, owner: str, param: str | None = None) -> StoredResponse:
        """Raises ``ApiError`` 404 that says why a response may be gone."""
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner:
            raise ApiError(
                404,
                f"Response {response_id!r} is not stored here. Responses are kept in memory until room is needed for "
                f"newer ones ({self._max_bytes // USER_PART} bytes for each user) or the server ends, and not at all "
                "with store false: send the whole conversation as input instead.",
                param=param,
                code="response_not_found",
            )
        self._entries.move_to_end(response_id)
        return entry

    def delete(self, response_id: str, owner: str) -> None:
        """Raises ``ApiError`` 404, as ``get``."""
        self._drop(self.get(response_id, owner))

    def find_item(self, item_id: str, owner: str) -> Item | None:
        """An item of one of ``owner``'s responses, by its id."""
        entry = self._entries.get(self._items.get(item_id, ""))
        if entry is None or entry.owner != owner:
            return None
        return next((item for item in entry.items() if item.get("id") == item_id), None)

    def _of(self, owner: str) -> Iterator[StoredResponse]:
        return (entry for entry in self._entries.values() if entry.owner == owner)

    def _drop(self, entry: StoredResponse) -> None:
        del self._entries[entry.response_id]
        for item_id in entry.item_ids:
            if self._items.get(item_id) == entry.response_id:
                del self._items[item_id]
        self._sizes[entry.owner] -= entry.size
        if not self._sizes[entry.owner]:
            del self._sizes[entry.owner]
