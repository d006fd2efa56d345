"""Reads traces of LLM traffic. Every row is checked where it is read, and an error names file, line and cure.

| format | columns or keys | what is missing |
| --- | --- | --- |
| fairlane, VTC arena (CSV) | `arrived_at_s,tenant,prompt_tokens,output_tokens` | |
| Azure LLM inference 2023 (CSV) | `TIMESTAMP,ContextTokens,GeneratedTokens` | tenants |
| Mooncake (JSON lines) | `timestamp` (ms), `input_length`, `output_length`, `hash_ids` | tenants |
| Vidur (CSV) | `num_prefill_tokens,num_decode_tokens,...` | tenants and times: all of it waits from the start |
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from sys import intern

import msgspec

from engine.errors import TraceError

MOONCAKE_BLOCK_TOKENS = 512
"""Of the prompt, for each of its `hash_ids`."""
MOONCAKE_BIN_S = 3.0
"""Its times are rounded to so much: the rows of one moment are spread over the bin."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request."""

    arrived_s: float
    """From the trace's first request."""
    tenant: str
    """Empty where the trace knows none."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the prompt's leading blocks: an equal name is an equal block."""
    block_tokens: int = 0


def read_trace(path: Path) -> list[TraceRow]:
    """The rows by time of arrival, the first at 0.

    Raises:
        TraceError: no file, no known format, a broken row, or no rows.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(_json_rows(path, file) if path.suffix in (".jsonl", ".json") else _csv_rows(path, file))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}: give the path of a readable file") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: it is not UTF-8 text: unpack it, or give a CSV or JSON lines file") from error
    if not rows:
        raise TraceError(f"{path}: it has no requests: at least one row is needed after the header")
    return in_order(rows)


def in_order(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """By time of arrival, the first at 0."""
    ordered = sorted(rows, key=lambda row: row.arrived_s)
    first_s = ordered[0].arrived_s if ordered else 0.0
    return [_at(row, row.arrived_s - first_s) for row in ordered] if first_s else ordered


def _at(row: TraceRow, arrived_s: float) -> TraceRow:
    return TraceRow(arrived_s, row.tenant, row.prompt_tokens, row.output_tokens, row.blocks, row.block_tokens)


# ---- CSV


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    reader = csv.DictReader(lines)
    header = tuple(reader.fieldnames or ())
    convert = next((convert for columns, convert in CSV_FORMATS.items() if set(columns) <= set(header)), None)
    if convert is None:
        known = "; ".join(",".join(columns) for columns in CSV_FORMATS)
        raise TraceError(f"{path}:1: the columns {','.join(header) or '(none)'} are no known format: a header has {known}")
    for row in reader:
        where = f"{path}:{reader.line_num}"
        if any(row[name] is None for name in header):
            raise TraceError(f"{where}: the line has fewer values than the header's {len(header)} columns: complete it or take it out")
        yield convert(where, row)


def _of_fairlane(where: str, row: Mapping[str, str]) -> TraceRow:
    tenant = intern(row["tenant"].strip())  # once, and not in each of a million rows
    return TraceRow(
        _seconds(where, "arrived_at_s", row), tenant, _tokens(where, "prompt_tokens", row), _tokens(where, "output_tokens", row)
    )


def _of_azure(where: str, row: Mapping[str, str]) -> TraceRow:
    text = row["TIMESTAMP"]
    try:
        moment = datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise TraceError(f"{where}: TIMESTAMP is {text!r}: write a time as 2023-11-16 18:17:03.9799600") from error
    return TraceRow(moment, "", _tokens(where, "ContextTokens", row), _tokens(where, "GeneratedTokens", row))


def _of_vidur(where: str, row: Mapping[str, str]) -> TraceRow:
    return TraceRow(0.0, "", _tokens(where, "num_prefill_tokens", row), _tokens(where, "num_decode_tokens", row))


CSV_FORMATS: dict[tuple[str, ...], Callable[[str, Mapping[str, str]], TraceRow]] = {
    ("arrived_at_s", "tenant", "prompt_tokens", "output_tokens"): _of_fairlane,
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _of_azure,
    ("num_prefill_tokens", "num_decode_tokens"): _of_vidur,
}


def _seconds(where: str, column: str, row: Mapping[str, str]) -> float:
    try:
        value = float(row[column])
    except ValueError as error:
        raise TraceError(f"{where}: {column} is {row[column]!r}: write seconds as a number") from error
    if not 0 <= value < 1e12:  # NaN fails as well
        raise TraceError(f"{where}: {column} is {row[column]!r}: times count from the trace's begin, so it must be 0 or more")
    return value


def _tokens(where: str, column: str, row: Mapping[str, str]) -> int:
    """A count of 0 is taken as 1: there is no request without a token."""
    try:
        value = int(row[column])
    except ValueError as error:
        raise TraceError(f"{where}: {column} is {row[column]!r}: write a whole number of tokens") from error
    if value < 0:
        raise TraceError(f"{where}: {column} is {value}: a number of tokens is 0 or more")
    return max(1, value)


# ---- JSON lines


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    moment: list[TraceRow] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _of_mooncake(f"{path}:{number}", line)
        if moment and row.arrived_s != moment[0].arrived_s:
            yield from _spread(moment)
            moment = []
        moment.append(row)
    yield from _spread(moment)


def _of_mooncake(where: str, line: str) -> TraceRow:
    try:
        found = msgspec.json.decode(line, type=_MooncakeLine)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}: a line is an object with timestamp, input_length, output_length and hash_ids") from error
    if min(found.timestamp, found.input_length, found.output_length) < 0:
        raise TraceError(f"{where}: timestamp, input_length or output_length is below 0: times and numbers of tokens are 0 or more")
    return TraceRow(
        found.timestamp / 1e3,
        "",
        max(1, found.input_length),
        max(1, found.output_length),
        found.hash_ids,
        MOONCAKE_BLOCK_TOKENS,
    )


def _spread(rows: list[TraceRow]) -> Iterator[TraceRow]:
    for index, row in enumerate(rows):
        yield _at(row, row.arrived_s + MOONCAKE_BIN_S * index / len(rows))
