"""How this copy of the package was installed, and the command that installs one of its extras beside it."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAME = "ordered-sgd"


def how_to_install(extra: str) -> str:
    """What to run for an extra, as a sentence without its full stop.

    The package need not come from an index: in a checkout, editable or on the path, and where it was installed from a
    folder, pip is to be run there; what came from a repository or a file is named by its address.
    """
    folder = _checkout(Path(__file__).resolve().parents[2])
    if folder is not None:
        return f'Run in {folder}: pip install -e ".[{extra}]"'
    from urllib.request import url2pathname  # here and below: rarely needed, and slow to import

    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = _checkout(Path(url2pathname(urlsplit(url).path)))
        if folder is not None:
            editable = "-e " if origin["dir_info"].get("editable") else ""
            return f'Run in {folder}: pip install {editable}".[{extra}]"'
    if "vcs_info" in origin:
        version = origin["vcs_info"].get("commit_id", "HEAD")
        return f'Run: pip install "{NAME}[{extra}] @ {origin["vcs_info"].get("vcs", "git")}+{url}@{version}"'
    if "archive_info" in origin:
        return f'Run: pip install "{NAME}[{extra}] @ {url}"'
    return f'Run: pip install "{NAME}[{extra}]"'


def _checkout(folder: Path) -> Path | None:
    """The folder, if the project's sources are there."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return None
    return folder if f'name = "{NAME}"' in text else None


def _origin() -> dict[str, Any]:
    """Where pip got the package, by the record that it keeps of everything that is not from an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
