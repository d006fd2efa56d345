"""Time to the first token of prompts with a long common beginning: cold, and from pages computed before ready (`--common-prefixes`).

python -m benchmarks.common_prefix                   starts this server, measures, prints a table
"""

import argparse
import asyncio
import json
import random
import shlex
import tempfile
from pathlib import Path

from benchmarks.load import Request, closed_loop
from benchmarks.prompts import prompt, words_of_tokens
from benchmarks.scenarios import Report, report, text_table
from benchmarks.servers import ours, running

QUESTION_WORDS = 12
OUTPUT_TOKENS = 4


async def measure(prefix_tokens: int, requests: int, flags: list[str]) -> dict[str, Report]:
    """`cold`: every prompt has a beginning of its own; `cached`: all have the one that was announced. One at a time."""
    rng = random.Random(0)
    num_words = words_of_tokens(prefix_tokens)
    known = prompt(rng, num_words)
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as folder:
        # JSON is YAML
        path = Path(folder) / "prefixes.yaml"
        path.write_text(json.dumps([{"text": known, "tenant": "default"}]))
        async with running(ours(["--common-prefixes", str(path), *flags])) as server:
            await closed_loop(server.endpoint, [Request(prompt(rng, 60), OUTPUT_TOKENS)] * 3, in_flight=1)  # these do not count
            cold = [Request(f"{prompt(rng, num_words)} {prompt(rng, QUESTION_WORDS)}", OUTPUT_TOKENS) for _ in range(requests)]
            cached = [Request(f"{known} {prompt(rng, QUESTION_WORDS)}", OUTPUT_TOKENS) for _ in range(requests)]
            return {
                "cold": report(await closed_loop(server.endpoint, cold, in_flight=1)),
                "cached": report(await closed_loop(server.endpoint, cached, in_flight=1)),
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.common_prefix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix-tokens", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--our-flags", default="", help="flags added to `fairlane serve`")
    arguments = parser.parse_args()
    numbers = asyncio.run(measure(arguments.prefix_tokens, arguments.requests, shlex.split(arguments.our_flags)))
    print(text_table(numbers))


if __name__ == "__main__":
    main()
