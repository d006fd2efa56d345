"""Long texts: of each tenant one at a time."""

import asyncio
import gc

from appliance.text.tokenizer import LONG_TEXT_CHARS
from appliance.text.turns import TextTurns


def test_of_each_tenant_one_long_text_is_read_at_a_time_and_short_ones_at_once() -> None:
    async def live() -> list[str]:
        turns, inside, let_go = TextTurns(), [], asyncio.Event()

        async def read(name: str, tenant_id: str, num_bytes: int) -> None:
            async with turns.take(tenant_id, num_bytes):
                inside.append(name)
                await let_go.wait()

        long, short = LONG_TEXT_CHARS + 1, LONG_TEXT_CHARS
        wanted = [("a1", "a", long), ("a2", "a", long), ("a-short", "a", short), ("b1", "b", long)]
        tasks = [asyncio.create_task(read(*each)) for each in wanted]
        await asyncio.sleep(0)
        assert inside == ["a1", "a-short", "b1"]
        tasks[1].cancel()
        tasks.append(asyncio.create_task(read("a3", "a", long)))
        let_go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()
        await asyncio.sleep(0)
        gc.collect()  # the cancelled one's traceback holds its lock
        assert not turns._locks, "nothing is kept of tenants that read no long text"
        return inside

    assert asyncio.run(live()) == ["a1", "a-short", "b1", "a3"]
