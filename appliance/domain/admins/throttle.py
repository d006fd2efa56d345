"""Login throttling: failures of an account and of an address make the next attempt wait, twice as long each time."""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

from appliance.errors import OverOwnLimit

FREE_OF_ACCOUNT = 5
FREE_OF_ADDRESS = 20
"""Failures without a wait; many people may share an address."""
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 300.0
"""Longest wait. It bounds what an attacker who fails on purpose can cost the real one; tokens and open sessions are not touched."""
FORGET_AFTER_S = 3_600.0
MAX_TRACKED = 10_000
"""The oldest are forgotten first: a flood of made-up names takes no more memory than this."""


@dataclass(slots=True)
class Failures:
    """In a row, and the moment of the last."""

    number: int
    at_s: float


class LoginThrottle:
    """Counts on the event loop, without a wait between look and count: parallel attempts do not slip through. Times are passed in."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, Failures] = OrderedDict()
        self._addresses: OrderedDict[str, Failures] = OrderedDict()

    def begin(self, account: str, address: str, now_s: float) -> None:
        """An attempt begins; it counts as failed until `succeed`. Raises `OverOwnLimit` while one of the two has to wait."""
        network = network_of(address)
        accounts, addresses = self._accounts, self._addresses
        left_s = max(_left_s(accounts.get(account), FREE_OF_ACCOUNT, now_s), _left_s(addresses.get(network), FREE_OF_ADDRESS, now_s))
        if left_s > 0:
            raise OverOwnLimit("too many failed logins: wait before the next one", reason="login_throttled", retry_after_s=left_s)
        _count(accounts, account, now_s)
        _count(addresses, network, now_s)

    def succeed(self, account: str, address: str) -> None:
        """The attempt was right: the account begins anew, the address gets this attempt back."""
        self.withdraw(account, address)
        self._accounts.pop(account, None)

    def withdraw(self, account: str, address: str) -> None:
        """The attempt was none: it could not be judged."""
        for table, name in ((self._accounts, account), (self._addresses, network_of(address))):
            failures = table.get(name)
            if failures is not None:
                failures.number -= 1


def wait_s(number: int, free: int) -> float:
    """How long to wait after so many failures in a row."""
    return 0.0 if number < free else min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(number - free, 60))


def network_of(address: str) -> str:
    """What one attacker has: an IPv4 address, the /64 network of an IPv6 one; another text as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))


def _left_s(failures: Failures | None, free: int, now_s: float) -> float:
    if failures is None or now_s - failures.at_s >= FORGET_AFTER_S:
        return 0.0
    return failures.at_s + wait_s(failures.number, free) - now_s


def _count(table: OrderedDict[str, Failures], name: str, now_s: float) -> None:
    failures = table.setdefault(name, Failures(0, now_s))
    if now_s - failures.at_s >= FORGET_AFTER_S:
        failures.number = 0
    failures.number += 1
    failures.at_s = now_s
    table.move_to_end(name)
    if len(table) > MAX_TRACKED:
        table.popitem(last=False)
