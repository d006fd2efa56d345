"""A mixed load on a real appliance that leaves something in every panel: two tenants, cancels, refusals, preemptions, a tenant removed."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from tests.appliance import Appliance

FLAGS = ("--max-num-seqs", "8", "--max-model-len", "512", "--num-gpu-blocks-override", "40", "--device-hour-price", "2")
FLAGS += ("--preempt-every-steps", "40")
"""Memory for one long sequence and a bit. Admission foresees what more of them would take, so preemptions are forced."""
STRICT, NOISY, GONE = "strict", "noisy", "gone"


@dataclass(slots=True)
class Sent:
    """What the clients saw, by tenant."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    prompt_tokens: Counter[str] = field(default_factory=Counter[str])
    generated_tokens: Counter[str] = field(default_factory=Counter[str])
    cancelled: Counter[str] = field(default_factory=Counter[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def requests(self, tenant: str) -> int:
        """All that were sent."""
        return sum(count for (name, _), count in self.statuses.items() if name == tenant) + self.cancelled[tenant]


STOPS_WITHIN_S = 60.0


class Traffic:
    """Clients in threads, until the block ends."""

    def __init__(self, appliance: Appliance) -> None:
        self.sent = Sent()
        self._pace_s = 0.0
        self._appliance = appliance
        self._keys: dict[str, str] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._admin = httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._admin.close()

    def add_tenant(self, slug: str, tier: str, **overrides: Any) -> None:
        """Make a tenant and a key for it."""
        self._call("POST", "/api/v1/tenants", {"slug": slug, "tier": tier, "overrides": overrides})
        self._keys[slug] = self._call("POST", f"/api/v1/tenants/{slug}/keys", {"name": "load"})["key"]

    def remove_tenant(self, slug: str) -> None:
        """Its series are to go."""
        response = self._admin.delete(f"/api/v1/tenants/{slug}")
        assert response.status_code in (200, 204), response.text

    def start(self) -> None:
        """A quiet tenant whose target nobody could meet, a noisy one with long prompts, cancels and refusals, and one that leaves."""
        for index in range(4):
            self._run(lambda index=index: self.complete(NOISY, f"{index} " + "word " * 250, 24, stream=bool(index % 2)))
        for tenant in (NOISY, STRICT):
            self._run(lambda tenant=tenant: self.complete(tenant, "Say it later.", 4, stream=False, lane="batch"), pause_s=0.5)
        self._run(lambda: self.complete(STRICT, "Say hello.", 12, stream=True))
        self._run(lambda: self.complete(STRICT, "Say hello again.", 8, stream=False))
        self._run(lambda: self.cancel(NOISY), pause_s=0.5)
        self._run(lambda: self.complete("limited", "Say no.", 4, stream=False), pause_s=0.3)
        self._run(lambda: self.complete(GONE, "Say goodbye.", 4, stream=True), pause_s=0.3)

    def ease(self) -> None:
        """Go on at a pace that leaves the machine to who looks at it: everything that is to be seen has happened."""
        self._pace_s = 1.0

    def stop(self) -> None:
        """No more requests; those in flight come to their end."""
        self._stop.set()
        deadline_s = time.monotonic() + STOPS_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"a request is still under way after {STOPS_WITHIN_S:g} s"

    def complete(self, tenant: str, prompt: str, max_tokens: int, *, stream: bool, lane: str | None = None) -> None:
        """One request, to its end."""
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream, "lane": lane}
        if stream:
            body["stream_options"] = {"include_usage": True}
        with self._client(tenant) as client:
            response = client.post("/v1/completions", json=body)
        usage: dict[str, int] = {}
        if response.status_code == 200:
            usage = _last_usage(response.text) if stream else response.json()["usage"]
        with self.sent.lock:
            self.sent.statuses[tenant, response.status_code] += 1
            self.sent.prompt_tokens[tenant] += usage.get("prompt_tokens", 0)
            self.sent.generated_tokens[tenant] += usage.get("completion_tokens", 0)

    def cancel(self, tenant: str) -> None:
        """A stream whose client leaves after its first token."""
        body = {"prompt": "Count to a thousand: 1, 2,", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with self._client(tenant) as client, client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 200:
                next(response.iter_lines())
        with self.sent.lock:
            if response.status_code == 200:
                self.sent.cancelled[tenant] += 1
            else:
                self.sent.statuses[tenant, response.status_code] += 1

    def _client(self, tenant: str) -> httpx.Client:
        return httpx.Client(
            base_url=self._appliance.base_url, headers={"Authorization": f"Bearer {self._keys[tenant]}"}, timeout=STOPS_WITHIN_S
        )

    def _run(self, work: Callable[[], None], pause_s: float = 0.0) -> None:
        def go() -> None:
            while not self._stop.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    work()
                self._stop.wait(max(pause_s, self._pace_s))

        self._threads.append(threading.Thread(target=go))
        self._threads[-1].start()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        response = self._admin.request(method, path, json=body)
        assert response.status_code < 300, response.text
        return response.json()


def _last_usage(text: str) -> dict[str, int]:
    frames = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return json.loads(frames[-1])["usage"]
