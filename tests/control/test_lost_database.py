"""A PostgreSQL that goes away and comes back: a relay in front of the real server is cut."""

import asyncio
import contextlib

import asyncpg
from httpx import ASGITransport, AsyncClient
from litestar import Litestar
from sqlalchemy import text

from appliance.db.database import Database
from appliance.domain.access.directory import LOST, NO_WRITES
from appliance.domain.tenants.bootstrap import open_control
from appliance.domain.tenants.routes import admin_router
from appliance.errors import Unavailable
from appliance.problems import EXCEPTION_HANDLERS
from appliance.settings import Settings
from tests.control.conftest import ADMIN_TOKEN, API_KEY
from tests.control.postgres import own_postgres


class Relay:
    """Passes bytes between clients and a server until it is cut; `join` listens on the same port again."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def join(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.close()


async def test_a_database_that_hangs_is_unavailable_to_all_who_ask(tmp_path):
    """More at once than there are connections: those without one must not wait for long, nor fail in another way."""
    with own_postgres() as server:
        database = Database(server.url.replace("postgresql", "postgresql+asyncpg", 1) + "/postgres")

        async def ask() -> str:
            try:
                async with database.read() as session:
                    await session.execute(text("SELECT 1"))
            except Unavailable as error:
                return error.reason
            return "answered"

        assert await ask() == "answered"
        await database.engine.dispose()
        server.hang()
        try:
            assert set(await asyncio.gather(*(ask() for _ in range(30)))) == {"database_unavailable"}
        finally:
            server.go_on()
        assert await ask() == "answered"
        await database.close()


async def test_a_lost_database_degrades_refuses_writes_with_503_and_no_key_with_401_and_recovers(postgres_server, tmp_path):
    host, _, port = postgres_server.rpartition("@")[2].partition(":")
    admin = await asyncpg.connect(f"{postgres_server}/postgres")
    await admin.execute("DROP DATABASE IF EXISTS fairlane_relayed WITH (FORCE)")
    await admin.execute("CREATE DATABASE fairlane_relayed")
    relay = Relay(host, int(port))
    await relay.join()
    url = f"{postgres_server.rpartition('@')[0]}@127.0.0.1:{relay.port}/fairlane_relayed"
    control = await open_control(
        Settings(data_dir=str(tmp_path), database_url=url, bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN)
    )
    app = Litestar([admin_router(control)], exception_handlers=EXCEPTION_HANDLERS, logging_config=None)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test", headers=headers) as client:  # pyright: ignore[reportArgumentType]
        await client.post("/api/v1/admins", json={"name": "alice", "role": "viewer", "password": "a horse, a staple"})
        login = {"name": "alice", "password": "a horse, a staple"}
        assert (await client.post("/api/v1/login", json=login)).status_code == 200
        await relay.cut()
        await control.directory.poll()
        assert control.directory.flaw == LOST
        assert control.directory.authenticate(API_KEY, None).tenant_id == "default"
        refused = await client.post("/api/v1/tenants", json={"slug": "acme"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable"), refused.text
        assert int(refused.headers["retry-after"]) >= 1
        for lost in (
            await client.get("/api/v1/me", headers={"Authorization": ""}),  # by the session
            await client.post("/api/v1/login", json=login),
        ):
            assert (lost.status_code, lost.json()["error"]["code"]) == (503, "database_unavailable"), lost.text

        await relay.join()
        await control.directory.poll()
        assert control.directory.flaw == NO_WRITES, "nobody has written yet"
        assert (await client.post("/api/v1/tenants", json={"slug": "acme"})).status_code == 201
        assert not control.directory.flaw
        assert "acme" in control.directory.snapshot.policies
    await control.close()
    await relay.cut()
    await admin.execute("DROP DATABASE fairlane_relayed WITH (FORCE)")
    await admin.close()
