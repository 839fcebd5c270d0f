"""Fair shares of tokens: per-user virtual token counters (VTC, arXiv:2401.00588)."""

from __future__ import annotations

from collections import OrderedDict

from .account import Account

#: Accounts of absent users kept; beyond this the longest unused go (their counter would mostly be lifted anyway).
MAX_IDLE_ACCOUNTS = 10_000


class Fairness:
    """The accounts. Two users who both always have something waiting are served alike, up to a constant.

    A user who comes back after having had nothing waiting is lifted to the least counter of those who wait (or to that
    of the last user who left the queue): credit cannot be saved up by staying away. What was preempted counts as
    running here: it was let in long ago, so its user's counter says nothing of where the others are.
    """

    def __init__(self) -> None:
        self.accounts: OrderedDict[str, Account] = OrderedDict()
        self.weights: dict[str, float] = {}
        self._waiting: dict[str, Account] = {}
        self._last_left: Account | None = None
        self._prune_at = MAX_IDLE_ACCOUNTS

    def set_weight(self, user: str, weight: float) -> None:
        """``weight`` times the share of a user with weight 1, from now on."""
        if not weight > 0:
            raise ValueError(f"the weight of user {user!r} is {weight}; it must be above 0")
        self.weights[user] = weight
        self.account(user).weight = weight

    def account(self, user: str) -> Account:
        account = self.accounts.get(user)
        if account is None:
            self._prune()
            account = self.accounts[user] = Account(user, self.weights.get(user, 1.0))
        self.accounts.move_to_end(user)
        return account

    def arrived(self, account: Account, new: bool = True, preempted: bool = False) -> None:
        """One of the account's sequences joined the queue; ``new`` unless it was preempted or forked."""
        account.waiting += 1
        if preempted:
            return
        if account.in_line == 0:
            if new:
                account.counter = max(account.counter, self.floor)
            self._waiting[account.user] = account
        account.in_line += 1

    def left(self, account: Account, preempted: bool = False) -> None:
        """One of the account's sequences left the queue."""
        account.waiting -= 1
        if preempted:
            return
        account.in_line -= 1
        if account.in_line == 0:
            del self._waiting[account.user]
            self._last_left = account

    @property
    def floor(self) -> float:
        """What a newcomer's counter is lifted to."""
        if self._waiting:
            return min(account.counter for account in self._waiting.values())
        return self._last_left.counter if self._last_left is not None else 0.0

    def _prune(self) -> None:
        if len(self.accounts) < self._prune_at:
            return
        some = MAX_IDLE_ACCOUNTS // 10
        idle = [account.user for account in self.accounts.values() if not account.waiting and not account.running]
        for user in idle[:some]:
            del self.accounts[user]
        self._prune_at = max(MAX_IDLE_ACCOUNTS, len(self.accounts) + some)  # with all of them busy: not every time
