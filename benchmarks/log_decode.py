"""What an access-log entry costs in Python: messages of 28 parsed and decoded, us of CPU per entry.

Run: python benchmarks/log_decode.py. Reads the recorded entries of tests/xds/log_entries.
"""

from __future__ import annotations

import time
from pathlib import Path

from google.protobuf import text_format
from pointsman.xds.api import HTTPAccessLogEntry, StreamAccessLogsMessage
from pointsman.xds.log_entries import decode_request, decode_try

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "xds" / "log_entries"
ENTRIES = 28
ROUNDS = 7
MESSAGES = 300


def main() -> None:
    """Print the best round of each case."""
    for case in ("json.request", "sse.request", "no_route.request", "retry.try_2", "dead.try_1"):
        entry = text_format.Parse((RECORDED / f"{case}.txtpb").read_text(), HTTPAccessLogEntry())
        message = StreamAccessLogsMessage()
        message.http_logs.log_entry.extend([entry] * ENTRIES)
        data = message.SerializeToString()
        decode = decode_request if "request" in case else decode_try
        whole_us, parse_us = [], []
        for _ in range(ROUNDS):
            start = time.process_time()
            for _ in range(MESSAGES):
                [decode(logged) for logged in StreamAccessLogsMessage.FromString(data).http_logs.log_entry]
            middle = time.process_time()
            for _ in range(MESSAGES):
                StreamAccessLogsMessage.FromString(data)
            whole_us.append((middle - start) / MESSAGES / ENTRIES * 1e6)
            parse_us.append((time.process_time() - middle) / MESSAGES / ENTRIES * 1e6)
        print(f"{case:18} {len(data) // ENTRIES:5} B  {min(whole_us):5.1f} us, of it parsing {min(parse_us):4.1f} us")


if __name__ == "__main__":
    main()
