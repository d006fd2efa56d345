"""Two tenants, as operators write load for Locust: A asks often and shortly, B seldom and for long answers.

    fairlane tenant create tenant-a    under tier `standard`; `--tier interactive` and others as you like
    fairlane tenant create tenant-b
    export TENANT_GATEWAY_KEY=...      `fairlane key create default --scope inference --scope gateway`: it speaks for both
    locust -f tests/load/locustfile.py --host http://127.0.0.1:8000 --headless -u 8 -r 4 -t 60s --stop-timeout 30

Without a gateway key, give one key a tenant: TENANT_A_KEY and TENANT_B_KEY. Statistics are named by tenant: `POST TenantA` is the whole
answer, `TTFT TenantA` the time to its first token. Without `--stop-timeout` answers that still run at the end are not counted: TenantB's
are long. A failure has the server's words, with # for numbers, so that equal ones are counted together.
"""

import json
import os
import random
import re
import time
import uuid

from locust import HttpUser, between, tag, task
from locust.clients import ResponseContextManager

MODEL = os.environ.get("TENANT_MODEL", "smollm2-135m-instruct")
WORDS = ("apple", "river", "stone", "cloud", "paper", "green", "light", "table", "music", "window", "garden", "letter")


def words_of(response: ResponseContextManager) -> str:
    """Why a request failed: the server's message; of what is none of its, the text; without an answer, the error of the connection."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text or str(response.error)
    return re.sub(r"\d+(\.\d+)?", "#", message)[:300]


class Tenant(HttpUser):
    """Streams completions under its tenant's name."""

    abstract = True
    tenant = ""
    slug = ""
    own_key_variable = ""

    def on_start(self) -> None:
        """The gateway's key and the tenant's name, or the tenant's own key."""
        gateway_key = os.environ.get("TENANT_GATEWAY_KEY", "")
        key = gateway_key or os.environ.get(self.own_key_variable, "")
        if not key:
            raise SystemExit(f"set TENANT_GATEWAY_KEY, or {self.own_key_variable} for {self.tenant}")
        self.headers = {"Authorization": f"Bearer {key}"} | ({"X-Tenant-ID": self.slug} if gateway_key else {})

    def complete(self, max_tokens: int) -> None:
        """One streamed answer of so many tokens to a prompt that no cache has seen."""
        prompt = f"{uuid.uuid4()} " + " ".join(random.choices(WORDS, k=40))
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        started = time.perf_counter()
        with self.client.post(
            "/v1/completions", json=body, headers=self.headers, name=self.tenant, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}: {words_of(response)}")
                return
            chunks = 0
            for line in response.iter_lines():
                chunks += self._take(line, started, is_first=not chunks)
            if not chunks:
                response.failure("no tokens came")

    def _take(self, line: bytes | str, started: float, *, is_first: bool) -> int:
        """1 for a line with text."""
        text = line.decode() if isinstance(line, bytes) else line
        if not text.startswith("data: {") or not json.loads(text[6:]).get("choices"):
            return 0
        if is_first:
            elapsed_ms = 1e3 * (time.perf_counter() - started)
            self.environment.events.request.fire(
                request_type="TTFT", name=self.tenant, response_time=elapsed_ms, response_length=0, exception=None, context={}
            )
        return 1


class TenantA(Tenant):
    """Three of four users; short answers, short pauses."""

    weight = 3
    wait_time = between(0.1, 0.5)
    tenant, slug, own_key_variable = "TenantA", "tenant-a", "TENANT_A_KEY"

    @tag("short")
    @task(2)
    def short(self) -> None:
        self.complete(20)

    @tag("medium")
    @task(1)
    def medium(self) -> None:
        self.complete(50)


class TenantB(Tenant):
    """One of four users; long answers, long pauses."""

    weight = 1
    wait_time = between(1.0, 3.0)
    tenant, slug, own_key_variable = "TenantB", "tenant-b", "TENANT_B_KEY"

    @tag("long")
    @task
    def long(self) -> None:
        self.complete(200)
