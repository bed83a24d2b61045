"""`make chaos SEED=n`: mixed requests while a seeded script breaks what it can; every request is accounted for.

Starts the product with its Envoy and its model servers on 127.0.0.1, prints what was done and what came of the
requests, and ends everything, also on Ctrl-C. Exit 0: all is accounted for; 1: not; 2: wrong arguments. The same seed
draws the same requests and the same script; what falls together is up to the machine. See docs/chaos.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections import Counter
from collections.abc import Sequence

from ask import Kind
from ledger import Class
from script import CATALOGUE
from traffic import RATE_LIMIT_PER_S
from trial import UNWELL, Plan, Trial

SHOWN_FAILURES = 30


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; exit 2 where they make no sense."""
    parser = argparse.ArgumentParser(description="Break what can be broken under load; account for every request.")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", help="seed of requests and script, a whole number (default 1)")
    seeds.add_argument("--seeds", help="several, with commas; they share the time")
    parser.add_argument("--minutes", type=float, default=10.0, help="time in all (default 10)")
    rate_text = f"requests a second (default 60, at most {RATE_LIMIT_PER_S})"
    parser.add_argument("--rate", type=int, default=60, help=rate_text)
    parser.add_argument("--only", help=f"disturbances, with commas, of: {', '.join(CATALOGUE)}")
    arguments = parser.parse_args(argv)
    try:
        arguments.seeds = [int(seed) for seed in (arguments.seeds or arguments.seed or "1").split(",")]
    except ValueError:
        parser.error("a seed is a whole number")
    if arguments.minutes <= 0 or arguments.rate <= 0:
        parser.error("--minutes and --rate must be above 0")
    arguments.names = tuple(name.strip() for name in (arguments.only or ",".join(CATALOGUE)).split(","))
    unknown = [name for name in arguments.names if name not in CATALOGUE]
    if unknown:
        parser.error(f"unknown disturbance {unknown[0]!r}")
    return arguments


def account(trial: Trial) -> list[str]:
    """Return the account of one seed, as lines."""
    ledger = trial.ledger
    lines = [f"seed {trial.plan.seed}: {ledger.total} requests"]
    for kind in Kind:
        of_kind = {one: ledger.classes[kind, one] for one in Class if ledger.classes[kind, one]}
        if of_kind:
            lines.append(f"  {kind.value:<12}" + ", ".join(f"{one.value} {count}" for one, count in of_kind.items()))
    lines.append("  in all      " + ", ".join(f"{one.value} {_of_class(trial, one)}" for one in Class))
    for (one, why), count in sorted(ledger.reasons.items(), key=lambda row: row[0][0].value):
        if one in (Class.BY_RULE, Class.REFUSED):
            lines.append(f"    {one.value}: {count} x {why}")
    lines += _recovery_lines(trial)
    if trial.vitals is not None:
        lines += [f"  {life.line()}" for life in trial.vitals.lives.values() if life.is_told]
        lines.append(f"  {len(trial.vitals.lives)} lives of processes")
    lines += [f"  FAILED {text.strip()}" for text in trial.failures[:SHOWN_FAILURES]]
    if len(trial.failures) > SHOWN_FAILURES:
        lines.append(f"  FAILED {len(trial.failures) - SHOWN_FAILURES} times more")
    return lines


def _of_class(trial: Trial, one: Class) -> int:
    return sum(count for (_, found), count in trial.ledger.classes.items() if found is one)


def _recovery_lines(trial: Trial) -> list[str]:
    done: Counter[str] = Counter(deed.name for deed in trial.deeds if not deed.was_skipped)
    lines = []
    for name, count in done.items():
        recovered = [deed.recovered_s for deed in trial.deeds if deed.name == name and deed.recovered_s is not None]
        settled = [deed.settled_s for deed in trial.deeds if deed.name == name and deed.settled_s is not None]
        if recovered and settled:
            lines.append(
                f"  {name:<22}{count:3} times, traffic right after at most {max(recovered):6.2f} s,"
                f" settled after at most {max(settled):6.2f} s"
            )
    skipped = {deed.name: deed.detail for deed in trial.deeds if deed.was_skipped}
    return lines + [f"  {name}: skipped, {why}" for name, why in skipped.items()]


async def run(arguments: argparse.Namespace) -> int:
    """Run the seeds one after the other and return the exit code."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    seconds = arguments.minutes * 60 / len(arguments.seeds)
    trials = []
    for seed in arguments.seeds:
        _say(f"seed {seed}: {seconds:.0f} s, {arguments.rate} requests/s")
        trial = Trial(Plan(seed, seconds, arguments.rate, arguments.names))
        trials.append(trial)
        try:
            await trial.run(_say)
        except UNWELL as error:
            trial.failures.append(str(error))
        _say("\n".join(account(trial)))
    failed = [trial.plan.seed for trial in trials if trial.failures]
    _say(f"FAILED: seeds {failed}" if failed else f"well: seeds {arguments.seeds}, every request is accounted for")
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code."""
    arguments = read_arguments(argv)
    # The model servers' library logs every client that left.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        return asyncio.run(run(arguments))
    return 130


if __name__ == "__main__":
    sys.exit(main())
