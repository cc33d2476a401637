"""What the documents show works as printed."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import ordered_sgd
from ordered_sgd import rules
from ordered_sgd.engines import ENGINES
from tests.distributed.launch import torchrun

ROOT = Path(__file__).parents[1]
NOT_IN_DEV = ("trl",)
WITH_TRAINERS = ("samplers.md", "trainers.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


TRAINERS = (  # one worker imports what takes seconds; Lightning warns of torch's and of its own loaders
    pytest.mark.xdist_group("trainers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=TRAINERS if p.name in WITH_TRAINERS else (), id=p.name) for p in PAGES]
)
def test_python_snippets_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    run_snippets(page, without=NOT_IN_DEV)


@pytest.mark.parametrize("package", [pytest.param(name, marks=TRAINERS) for name in NOT_IN_DEV])
def test_snippets_for_packages_that_the_extra_dev_lacks_run(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package, reason='it is in the extra "compat", which "dev" does not hold')
    monkeypatch.chdir(tmp_path)
    run_snippets(ROOT / "docs" / "trainers.md", without=())


def run_snippets(page: Path, without: tuple[str, ...]) -> None:
    """Run the snippets of a page, except those that import one of these packages."""
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {}
    for snippet in snippets:
        if not any(f"from {package} import" in snippet for package in without):
            exec(compile(snippet, str(page), "exec"), namespace)


def test_the_tables_name_every_rule_and_engine() -> None:
    for rule in rules.RULES:
        assert f"`{rule.__name__}(" in (ROOT / "docs" / "loop.md").read_text()
    for engine in ENGINES:
        assert f"| `{engine}` |" in (ROOT / "docs" / "engines.md").read_text()


def test_every_public_name_is_in_a_document() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in ordered_sgd._DOOR if name not in text] == []


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for page in PAGES for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M)}
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    assert {"demo", "test"} <= targets <= set(phony[1].split())


def test_links_between_files_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_citation_carries_the_version() -> None:
    assert f"version: {ordered_sgd.__version__}\n" in (ROOT / "CITATION.cff").read_text()


EXAMPLES = {  # how each runs at a small size in one process, and words that it prints
    "01_digits.py": (("--seeds", "2", "--epochs", "3"), "points of test error"),
    "03_rare_class.py": (("--splits", "2"), "the error of the rare class"),
    "04_accelerate.py": (("--epochs", "2"), "test error"),
    "05_label_errors.py": (("--shares", "10", "--seeds", "1", "--size", "300"), "av. prec."),
    "06_huggingface.py": (("--seeds", "2", "--epochs", "1"), "points of test error"),
    "07_pixels.py": (("--seeds", "2", "--epochs", "2", "--scenes", "8"), "points of mean IoU"),
    "08_reproduce_a_row.py": (("--trials", "2", "--epochs", "2"), "start it again, and nothing is trained"),
    "09_write_a_rule.py": (("--seeds", "2", "--epochs", "2"), "saved half way, it goes on alike"),
    "10_lightning_inline.py": (("--epochs", "5", "--q", "0.25"), "22 of them left samples out"),
    "11_nanogpt_accumulation.py": (("--steps", "3"), "kept 8 of 32"),
    "12_ppo.py": (("--rollouts", "1", "--passes", "3"), "gradients differed by at most"),
    "13_run_glue.py": (("--rows", "64", "--epochs", "1"), "points of accuracy"),
    "14_run_clm.py": (("--blocks", "32"), "mean loss on other texts"),
    "15_sft_lora.py": (("--pairs", "32", "--steps", "4", "--epochs", "1"), "mean loss on other files"),
}
ON_RANKS = "02_distributed.py"
NEEDED = {"15_sft_lora.py": ("trl", "peft")}  # packages that the extra "dev" lacks


LONG = (
    *("04_accelerate.py", "05_label_errors.py", "06_huggingface.py", "07_pixels.py", "08_reproduce_a_row.py"),
    *("10_lightning_inline.py", "11_nanogpt_accumulation.py", "12_ppo.py"),
    *("13_run_glue.py", "14_run_clm.py", "15_sft_lora.py"),
)
NAMES = sorted({path.name for path in (ROOT / "examples").glob("[0-9]*.py")} - {ON_RANKS})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in NAMES]
)
def test_examples_run_at_a_small_size(name: str, tmp_path: Path) -> None:
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package, reason='it is in the extra "compat", which "dev" does not hold')
    arguments, words = EXAMPLES[name]
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert words in " ".join(run.stdout.split())


def test_an_example_names_the_package_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("datasets", "tokenizers", "peft", "trl"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=r"15_sft_lora.py needs \w+\. Run in .*: pip install -e \"\.\[trl\]\" peft"):
        runpy.run_path(str(ROOT / "examples" / "15_sft_lora.py"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--shard"]])
def test_the_example_on_ranks_runs_on_two(options: list[str]) -> None:
    run = torchrun(2, ROOT / "examples" / ON_RANKS, "--epochs", 4, *options)
    assert run.returncode == 0, run.stderr
    assert re.findall(r"epoch \d: q (\d+)", run.stdout) == ["64", "64", "64", "32"]


def test_every_example_says_how_it_is_run() -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        docstring = ast.get_docstring(ast.parse(example.read_text()))
        assert docstring is not None
        assert f"examples/{example.name}" in docstring.partition("Run: ")[2]
