"""Who sends a request: known by a key, or by what the request says of itself."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field

from starlette.types import Scope

from .allowance import Allowance
from .usage import Usage
from .user import OTHER, User

#: Longer ``user`` fields are told apart by their digest.
_LONGEST = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """One request's sender. ``name`` is whose fair share it comes out of, "" where the key names nobody."""

    name: str = ""
    address: str = ""
    usage: Usage = field(default_factory=Usage)  # counted up in place
    user: User | None = None  # of the users' file
    allowance: Allowance | None = None  # where there is a user

    @property
    def label(self) -> str:
        """In metrics: names that the operator gave, and no others."""
        return OTHER if self.user is None else self.user.name

    def share(self, field: str | None) -> str:
        """Whose fair share: the key's user, else who the body's ``user`` field names, else the client's address.

        The three can't be taken for each other: a user's name holds no colon.
        """
        if self.name:
            return self.name
        if field:
            return f"user:{field}" if len(field) <= _LONGEST else f"user:{_digest(field)}"
        return f"address:{network(self.address)}"

    def context(self, tokens: int) -> int:
        """What they may use of a context of ``tokens``."""
        limit = None if self.user is None else self.user.max_context
        return tokens if limit is None else min(tokens, limit)

    def priority(self, asked: int | None) -> int:
        """Of a request; lower goes first, and none goes before what the user may have."""
        if self.user is None:
            return asked or 0
        return self.user.priority if asked is None else max(asked, self.user.priority)


def network(address: str) -> str:
    """An address as one sender's: of IPv6 the first 64 bits, which one subscriber has whole."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)


def caller_of(scope: Scope) -> Caller:
    """As the middleware found; of an application without it, nobody in particular."""
    caller = scope.get("caller")
    return caller if isinstance(caller, Caller) else Caller(address=address_of(scope))


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
