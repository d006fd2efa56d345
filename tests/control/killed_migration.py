"""Migrates a database in processes of its own that kill themselves on the way: python -m tests.control.killed_migration URL PLACE...

For each place one process, one after the other. A place is the number of a statement, before which it is killed, or `commit`.
"""

import asyncio
import itertools
import os
import signal
import sys

from sqlalchemy import Engine, event

from appliance.db.revision import migrate


def migrate_until(url: str, place: str) -> None:
    """Does not return where the place is reached."""
    numbers = itertools.count()

    def on_statement(*_: object) -> None:
        if str(next(numbers)) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_commit(*_: object) -> None:
        if place == "commit":
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", on_statement)
    event.listen(Engine, "commit", on_commit)
    asyncio.run(migrate(url))


def main() -> None:
    url, *places = sys.argv[1:]
    for place in places:
        child = os.fork()
        if not child:
            migrate_until(url, place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{place} was never reached"


if __name__ == "__main__":
    main()
