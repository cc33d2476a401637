"""Starts torchrun on this machine's loopback."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """The ranks treat warnings as errors, talk over the loopback only and have one thread each."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    more = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **more}


def command(ranks: int, script: Path, *arguments: object, restarts: int = 0) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    here = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    return [*launcher, *here, f"--max-restarts={restarts}", str(script), *map(str, arguments)]


def torchrun(ranks: int, script: Path, *arguments: object, timeout: float = 300, **more: Any) -> Any:
    """The finished job."""
    started = command(ranks, script, *arguments, **more)
    return subprocess.run(started, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=timeout)
