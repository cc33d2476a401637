"""Run the model matrix, each model in a process of its own: a crash or a model that takes too long ends only itself.

Observations are appended to a file of JSON lines; models that stand there are not run again.

Run: python -m tests.compat.run --out models.jsonl [--set-aside] [NAME ...]
"""

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.compat.models import MODELS
from tests.compat.observe import observe

SECONDS = 300.0  # that a model may take


def run_one(name: str, seconds: float = SECONDS) -> dict[str, Any]:
    """What the engines make of the model, or why that is not known."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.compat.loaded"])
    receiver, sender = context.Pipe(duplex=False)
    entry = MODELS[name]
    given = {"name": name, "coupled": entry.case.coupled, "set_aside": entry.set_aside}
    process = context.Process(target=_send, args=(sender, name))
    process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(seconds) else {"failed": f"not finished in {seconds:.0f} s"}
    except EOFError:
        process.join()
        found = {"failed": f"the process ended with exit code {process.exitcode}"}
    if process.is_alive():
        process.kill()
    process.join()
    return {**given, **found}


def _send(sender: Connection, name: str) -> None:
    """In a process of its own: send the observation, and how many lines were written to stderr meanwhile."""
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            found = observe(MODELS[name])
        except Exception as error:  # the model cannot even be built
            found = {"failed": f"{type(error).__name__}: {error}"}
        written.seek(0)
        sender.send({**found, "stderr": written.read().count(b"\n")})


def run(names: Sequence[str], out: Path, seconds: float = SECONDS) -> Iterator[dict[str, Any]]:
    """Each observation as it comes, appended to the file; names that stand there are left out."""
    known = {found["name"] for found in read(out)}
    for name in names:
        if name in known:
            continue
        found = run_one(name, seconds)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        yield found


def read(path: Path) -> list[dict[str, Any]]:
    """The observations in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """Run what the command line names, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names to run; all if none is given")
    parser.add_argument("--out", type=Path, required=True, help="the file of JSON lines")
    parser.add_argument("--set-aside", action="store_true", help="the third that is set aside, in place of the rest")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a model may take")
    options = parser.parse_args()
    chosen = [name for name, entry in MODELS.items() if entry.set_aside == options.set_aside]
    if options.names:
        chosen = [name for name in chosen if any(part in name for part in options.names)]
    for found in run(chosen, options.out, options.seconds):
        print(found["name"], "|", found.get("failed") or _line(found), flush=True)


def _line(found: dict[str, Any]) -> str:
    parts = []
    for kind in ("auto", "rows", "selective"):
        one = found.get(kind)
        if one is not None:
            what = one.get("failed") or f"{one['ran']} {one['error']:.0e} {one['why'] or ''}"
            parts.append(f"{kind}: {what} ({one['seconds']:.0f} s, {len(one['warnings'])} warnings)")
    return " | ".join(parts) + f" | {found['stderr']} lines on stderr"


if __name__ == "__main__":
    main()
