"""How many files, and so connections, this process may have open at once."""

import resource

WANTED = 65_536


def reachable_open_files() -> int:
    """What the system allows, up to `WANTED` or the present limit."""
    soft, hard = (WANTED if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    return max(soft, min(hard, WANTED))


def raise_open_files() -> None:
    """Take what the system allows: shells and containers often begin with 1,024 of 524,288."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < (reachable := reachable_open_files()):
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
