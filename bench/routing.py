"""Which of several equal machines each session goes to, by a fixed rule."""

from __future__ import annotations

from .dataset import Drawn

_ROUTE_TOKENS = 64  # of a prompt's beginning that say which it shares it with
#: How requests come to one of several machines.
ROUTINGS = ("turns", "prefix")


def route(drawn: Drawn, replicas: int, routing: str) -> list[Drawn]:
    """What each of ``replicas`` is given; one that would get nothing is left out.

    "turns": sessions are dealt out in turn. "prefix": those whose prompts begin with the same tokens go where the
    first of them went, which is where the fewest sessions were then: a cache is filled once, not on every machine.
    """
    places: dict[object, int] = {}
    shares: list[list[int]] = [[] for _ in range(replicas)]
    for number, session in enumerate(drawn.sessions):
        place = number % replicas
        if routing == "prefix":
            content = session.turns[0].content
            key = content[:_ROUTE_TOKENS] if isinstance(content, tuple) else content
            place = places.setdefault(key, min(range(replicas), key=lambda index: len(shares[index])))
        shares[place].append(number)
    return [
        Drawn([drawn.sessions[i] for i in share], None if drawn.due is None else [drawn.due[i] for i in share])
        for share in shares
        if share
    ]
