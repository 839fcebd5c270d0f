"""What the engine takes in: a request is checked once, with numbers, and becomes sequences."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .account import Account
from .constraint import Constraint
from .grammar import Grammar, GrammarError
from .request import Request, RequestRejectedError
from .sequence import Group, Sequence, derive_seed


@dataclass(frozen=True, slots=True)
class Limits:
    """What can be served at all. Lengths are tokens."""

    max_len: int  # of a sequence, prompt and output
    pool_tokens: int  # that an empty KV pool holds
    vocab_size: int
    end_ids: frozenset[int]


def check(request: Request, limits: Limits) -> None:
    """Refuse what can never be served.

    Raises:
        RequestRejectedError: with code ``empty_prompt``, ``invalid_token``, ``context_length_exceeded`` or
            ``kv_cache_exceeded``.
    """
    length = len(request.prompt_ids)
    if not length:
        raise RequestRejectedError("the prompt is empty; at least one token is needed to start from", "empty_prompt")
    _check_ids("the prompt", request.prompt_ids, limits.vocab_size)
    _check_ids("logit_bias", request.params.logit_bias, limits.vocab_size)
    if length >= limits.max_len:
        raise RequestRejectedError(
            f"the prompt is {length} tokens long and at least 1 more is needed for the answer, but this model's "
            f"maximum context length is {limits.max_len} tokens: shorten the prompt by {length + 1 - limits.max_len}",
            "context_length_exceeded",
        )
    if length + 1 > limits.pool_tokens:
        raise RequestRejectedError(
            f"the prompt is {length} tokens long and at least 1 more is needed for the answer, but the whole KV cache "
            f"holds {limits.pool_tokens} tokens: shorten the prompt or start the server with a larger kv_cache_memory",
            "kv_cache_exceeded",
        )


def _check_ids(what: str, ids: tuple[int, ...] | dict[int, float], vocab_size: int) -> None:
    if not ids:
        return
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise RequestRejectedError(f"{what} holds token id {bad}; ids are 0 to {vocab_size - 1}", "invalid_token")


def make_group(
    request: Request, limits: Limits, account: Account, order: int, rng: random.Random, grammar: Grammar | None = None
) -> Group:
    """The request's sequences, each with its own seed; the first is the leader, the others are held back for it.

    Raises:
        RequestRejectedError: with code ``invalid_grammar``: nothing can be said that follows ``grammar``.
    """
    params = request.params
    seed = rng.getrandbits(64) if params.seed is None else params.seed
    length = len(request.prompt_ids)
    # The last token of a sequence is never fed back, so a pool of C tokens carries C + 1.
    limit = min(limits.max_len, limits.pool_tokens + 1)
    if params.max_tokens is not None:
        limit = min(limit, length + params.max_tokens)
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else limits.end_ids)
    group = Group(request, account)
    for index in range(params.n):
        seq = Sequence(
            group,
            request.request_id,
            index,
            order + index,
            derive_seed(seed, index),
            limit,
            stop_ids,
            list(request.prompt_ids),
            account,
            request.priority,
            length,
            constraint=_constraint(grammar, stop_ids, limits, params.min_tokens),
        )
        group.seqs.append(seq)
    group.held = group.seqs[1:]
    group.num_unfinished = params.n
    return group


def _constraint(
    grammar: Grammar | None, stop_ids: frozenset[int], limits: Limits, min_tokens: int
) -> Constraint | None:
    if grammar is None:
        return None
    try:
        return Constraint(grammar, stop_ids, limits.end_ids, min_tokens)
    except GrammarError as error:
        raise RequestRejectedError(str(error), "invalid_grammar") from None
