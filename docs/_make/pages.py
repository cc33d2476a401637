"""Pages of the site that are made from what is written elsewhere: README, results, commands, examples, public names.

A hook of mkdocs. The other pages are read as files as well, so their links are paths between files; here they become
links between pages.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

import ordered_sgd
from ordered_sgd.lab.cli.main import osgd

ROOT = Path(__file__).parents[2]
FROM_ROOT = {  # file of the repository -> page
    "README.md": "index.md",
    "RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Modules whose public names are documented beside those of the package itself.
MODULES = (
    *("rules", "engines", "batches", "scores", "optim", "theory", "linear"),
    *("diagnostics.calibration", "diagnostics.suspects"),
    *("integrations.lightning", "integrations.huggingface", "integrations.skorch", "errors"),
    *("lab.data", "lab.data.source", "lab.models"),
)


def on_files(files: Files, config: Any) -> Files:
    """All pages, the made ones among them."""
    made = {target: (ROOT / name).read_text(encoding="utf-8") for name, target in FROM_ROOT.items()}
    made |= {"commands.md": commands(), "examples.md": examples(), "api.md": api()}
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links to files of the repository turned into links to pages of the site."""
    return re.sub(r"\[([^]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)", _relinked, markdown)


def _relinked(link: re.Match[str]) -> str:
    words, target, anchor = link[1], link[2], link[3] or ""
    bare = target.removeprefix("../").removeprefix("docs/")
    if bare in FROM_ROOT:
        return f"[{words}]({FROM_ROOT[bare]}{anchor})"
    if bare.startswith("examples/"):
        return f"[{words}](examples.md#{Path(bare).stem})"
    if bare.startswith("src/") or bare == "LICENSE":
        return f"`{words.strip('`')}`"  # the site has no page of it
    return f"[{words}]({bare}{anchor})" if target.startswith("docs/") else link[0]


def commands() -> str:
    """The reference of `osgd`: what each command does, and its options, as its own help says them."""
    parts = [
        "# Commands",
        "`osgd COMMAND --help` prints the same; `osgd --debug COMMAND` shows the traceback of an error.",
    ]
    for path, command, context in _commands(osgd, click.Context(osgd, info_name="osgd"), ()):
        usage = " ".join(["osgd", *path, *command.collect_usage_pieces(context)])
        words = inspect.cleandoc(command.help or "").replace("\b\n", "")
        parts += [f"{'#' * (1 + len(path))} osgd {' '.join(path)}", f"```\n{usage}\n```", words]
        helps = [parameter.get_help_record(context) for parameter in command.params]
        lines = [f"| `{one[0]}` | {_cell(one[1])} |" for one in helps if one is not None and "--help" not in one[0]]
        if lines:
            parts.append("\n".join(["| option | meaning |", "| --- | --- |", *lines]))
    return "\n\n".join(parts) + "\n"


def _commands(
    group: click.Group, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """Every command and those below it, in the order of the help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield (*path, name), command, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner, (*path, name))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def examples() -> str:
    """Every example with what it shows, how it is run, and its code."""
    parts = ["# Examples", "Scripts that run as they are, each at a small size in the tests."]
    for path in sorted((ROOT / "examples").glob("[0-9]*.py")):
        source = path.read_text(encoding="utf-8")
        title, _, words = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
        what, _, run = words.strip().partition("Run: ")
        parts += [f"## {path.stem[:2]}: {title.rstrip('.')} {{#{path.stem}}}", f"{what}\nRun: {' '.join(run.split())}"]
        parts.append(f'??? example "examples/{path.name}"\n\n' + textwrap.indent(f"```python\n{source}```", "    "))
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """The reference of every public name, from the doors of the package and of its modules."""
    parts = ["# API", "Every name below is public; the examples in it are run by the tests.", "## ordered_sgd"]
    parts += [_entry(f"ordered_sgd.{module}.{name}") for name, module in ordered_sgd._DOOR.items()]
    for module in MODULES:
        loaded = importlib.import_module(f"ordered_sgd.{module}")
        parts += [f"## ordered_sgd.{module}", (loaded.__doc__ or "").strip()]
        parts += [_entry(name) for name in _public(loaded) if name.rpartition(".")[2] not in ordered_sgd._DOOR]
    return "\n\n".join(parts) + "\n"


def _public(module: Any) -> list[str]:
    """Where the public functions and classes of a module are defined; of one without a door, those of its own."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    values = {name: getattr(module, name) for name in names}
    return [f"{value.__module__}.{name}" for name, value in values.items() if callable(value)]


def _entry(name: str) -> str:
    return f"::: {name}\n    options:\n      heading_level: 3"
