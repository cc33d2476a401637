"""The promises of every command, in one table."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ordered_sgd.lab.cli.main import COMMANDS, main
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.requests import Request
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records


@dataclass(frozen=True)
class Row:
    """A command: a call that works, and calls that do not, each with the line it deserves."""

    name: str
    works: tuple[str, ...] | None  # None: it serves until Ctrl-C, and prints no table
    wrong: tuple[tuple[tuple[str, ...], str], ...]
    document: bool = False  # its JSON is an object and not rows of a table


SMALL = ("--trials", "1", "--epochs", "1", "--workers", "1", "--quiet")
TABLE = [
    Row(
        "advise",
        works=("--data", "digits", "--epochs", "2", "--minutes", "0.02", "--quiet", "--out", "a.html"),
        wrong=(
            ((), "osgd advise: FUNCTION or --data must be given; got neither. Run: osgd advise my.module:function"),
            (("a.b:c", "--data", "digits"), "osgd advise: FUNCTION or --data must be given; got both."),
            (("a.b:c", "--s", "8"), "osgd advise: --s must be used with --data; got --s with a.b:c."),
            (("nothing.here:make",), "osgd advise: FUNCTION must name a function that can be imported"),
            (("make",), "osgd advise: FUNCTION must be named package.module:function; got 'make'."),
            (("--data", "digit"), "osgd advise: name must be one of semeion, mnist,"),
            (("--data", "digits", "--minutes", "0"), "0.0 is not in the range x>0"),
            (("--data", "digits", "--lr", "-1"), "-1.0 is not in the range x>0"),
        ),
        document=True,
    ),
    Row(
        "compare",
        works=(*SMALL, "--no-tune", "--out", "c.html"),
        wrong=(
            (("--data", "digit"), "osgd compare: name must be one of semeion, mnist,"),
            (("--data", "nothing.here:make"), "osgd compare: --data must name a function that can be imported"),
            (("--model", "lennet"), "osgd compare: name must be one of logistic, svm, linear, mlp, lenet,"),
            (("--data", "digits", "--model", "lenet"), "size must be at least 16; got 8"),
            (
                ("--engine", "fast"),
                "osgd compare: engine must be one of auto, dense, rows, twopass, memory, kernels; got 'fast'.",
            ),
            (
                ("--q", "0"),
                "osgd compare: --q must be a count from 1 to s = 64 or a share in (0, 1]; got 0. Pass",
            ),
            (("--q", "65"), "or a share in (0, 1]; got 65. For 65 % of the mini-batch pass the share: --q 0.65."),
            (("--memory", "--recall", "1.5"), "osgd compare: recall must be a share in (0, 1]; got 1.5."),
            (("--backend", "rey"), "osgd compare: --backend must be one of processes, ray; got 'rey'. Did you mean"),
            (("--lr", "-1"), "osgd compare: --lr must be positive; got -1.0. The paper's is 0.01."),
            (("--trials", "0"), "0 is not in the range x>=1"),
        ),
    ),
    Row(
        "reproduce",
        works=("figure1", "--rows", "figure1a", *SMALL),
        wrong=(
            ((), "osgd reproduce: EXHIBIT must be named; got none. See them all: osgd reproduce --list"),
            (("table9",), "osgd reproduce: name must be one of table1,"),
            (("figure2",), "got 'figure2'. Figure 2 needs no training: run osgd gamma --figure2"),
            (
                ("table1", "--rows", "semeion"),
                "got 'semeion'. --rows 'semeion*' stands for 5 rows. Near names: ",
            ),
            (("ablation", "--rows", "semeion-logistic"), "--rows 'semeion-logistic*' stands for 12 rows. Near names:"),
            (("ablation", "--rows", "logistic"), "--rows '*logistic*' stands for 24 rows."),
            (("table1", "--rows", "xyz"), "They begin with cifar10, cifar100, fashion, kmnist, mnist, semeion, svhn."),
            (
                ("table1", "--protocol", "papers"),
                "osgd reproduce: name must be one of paper, authors-code; got 'papers'.",
            ),
            (("table1", "--switch", "hidden"), "osgd reproduce: --switch must be name=value with one of last_drop"),
            (
                ("table1", "--list", "--switch", "hinge=abc"),
                "osgd reproduce: hinge must be one of sum, mean; got 'abc'. The",
            ),
            (
                ("table1", "--list", "--switch", "accuracy=foo"),
                "osgd reproduce: accuracy must be one of epoch, pass, clean; got",
            ),
            (
                ("table1", "--list", "--switch", "counts=maybe"),
                "counts must be one of true, false, on, off, yes, no, 1, 0; got",
            ),
            (
                ("table1", "--list", "--switch", "lenet_dropout=abc"),
                "lenet_dropout must be a number; got 'abc'. The paper's is",
            ),
            (
                ("table1", "--list", "--switch", "lenet_dropout=nan"),
                "lenet_dropout must be a share in [0, 1); got nan. The",
            ),
            (
                ("table1", "--list", "--switch", "lenet_hidden=9.5"),
                "lenet_hidden must be an integer; got '9.5'. The paper's is",
            ),
            (
                ("table1", "--list", "--switch", "lenet_hidden=0"),
                "lenet_hidden must be an int of at least 1; got 0. The paper's",
            ),
            (
                ("--list", "--rows", "semeion"),
                "--rows must be ids or patterns of rows; got 'semeion'. --rows",
            ),
            (("--list", "--epochs", "3"), "osgd reproduce: EXHIBIT must be named with --epochs; got none. Name one"),
            (
                ("table1", "--rows", "semeion-svm", "--epochs", "100", "--list"),
                "osgd reproduce: --epochs must be at most 50; got 100. Leave it out for whole rows.",
            ),
            (
                ("table1", "--rows", "semeion-svm", "--train-size", "5000", "--list"),
                "osgd reproduce: --train-size must be at most 1,000; got 5,000. Leave it out for whole rows.",
            ),
            (
                ("figure1", "--address", "auto"),
                "osgd reproduce: --address must be used with --backend ray; got 'auto'. Processes run on this machine",
            ),
            (
                ("figure1", "--backend", "ray", "--address", "ray://head:10001"),
                "osgd reproduce: --address must be auto or host:port; got 'ray://head:10001'. Start the command on",
            ),
            (("table1", "--epochs", "0"), "osgd reproduce: epochs must be at least 1; got 0."),
            (("table1", "--rows", "semeion-svm", "--width", "0.5"), "must be one of preact-resnet18; got 'svm'."),
        ),
    ),
    Row(
        "report",
        works=("--out", "r.html"),
        wrong=((("--colour",), "No such option"), (("--out",), "requires an argument")),
    ),
    Row(
        "records",
        works=("list",),
        wrong=(
            (("rm",), "Missing argument 'RUN_ID...'"),
            (("rm", "abc"), "osgd records: RUN_ID must be the id of a recorded run; got abc. Run: osgd records list"),
            (("rm", ""), "osgd records: RUN_ID must be the id of a recorded run; got ''. Run: osgd records list"),
            (("export", "--format", "xml"), "'xml' is not one of 'csv', 'json'"),
            (("import",), "Missing argument 'FILE...'"),
            (("import", "none.csv"), "'none.csv' does not exist"),
        ),
    ),
    Row(
        "data",
        works=("list",),
        wrong=(
            (("fetch",), "Missing argument 'NAME...'"),
            (("fetch", "minst"), "osgd data: NAME must be one of semeion, mnist, "),
            (("verify", "digits"), "osgd data: NAME must be one of semeion, mnist, "),
            (("show", "cifar"), "got 'cifar'. Did you mean 'cifar10'?"),
            (("show", "mnist", "--split", "valid"), "osgd data: --split must be one of train, test; got 'valid'."),
            (("show", "mnist", "--n", "0"), "osgd data: --n must be between 1 and 200; got 0. Leave"),
            (
                ("show", "mnist", "--augment", "mixup"),
                "--augment must be one of none, standard; got 'mixup'. The paper",
            ),
            (("show", "mnist", "--split", "test", "--augment", "standard"), "must be one of none; got 'standard'."),
            (("show", "figure1a"), "osgd data: NAME must hold images; got samples of shape (2,). Run"),
            (("show", "mnist", "--seed", "-1"), "-1 is not in the range x>=0"),
            (("show",), "Missing argument 'NAME'"),
        ),
    ),
    Row(
        "gamma",
        works=("--n", "20,30", "--s", "10", "--q", "3", "--out", "figure"),
        wrong=(
            (
                ("--n", "5", "--s", "10", "--q", "3"),
                "osgd gamma: s must be an int from 1 to n = 5; got 10. A mini-batch",
            ),
            (
                ("--n", "50", "--s", "10", "--q", "0"),
                "osgd gamma: --q must be a count from 1 to s = 10 or a share in (0, 1]; got 0. Pass --q 1 for",
            ),
            (
                ("--n", "0", "--s", "1", "--q", "1"),
                "osgd gamma: n must be an int of at least 1; got 0. Pass the number",
            ),
            (
                ("--n", "10", "--s", "5", "--q", "1.5"),
                "got 1.5. For 1.5 % of the mini-batch pass the share: --q 0.015.",
            ),
            (("--n", "10", "--s", "5", "--q", "few"), "must be a count such as 16 or a share such as 0.25; got 'few'."),
            (("--n", "1000000000", "--s", "5", "--q", "2"), "n must be at most 100,000,000; got 1,000,000,000. The"),
            (("--n", "9,x", "--s", "1", "--q", "1"), "must be integers separated by commas; got '9,x'."),
            (("--s", "10"), "--n, --s and --q must be given together; got fewer."),
            (("--figure2", "--s", "10"), "--figure2 must be used without --n, --s and --q; got both."),
            (("--s", "ten"), "'ten' is not a valid integer"),
            (("--colour",), "No such option"),
        ),
    ),
    Row(
        "q",
        works=("--n", "600", "--s", "64"),
        wrong=(
            (("--n", "10", "--s", "64"), "osgd q: s must be an int from 1 to n = 10; got 64. A mini-batch"),
            (("--s", "0"), "osgd q: s must be an int of at least 1; got 0. Pass the number"),
            (
                ("--s", "8", "--q", "9"),
                "osgd q: --q must be a count from 1 to s = 8 or a share in (0, 1]; got 9. For",
            ),
            (
                ("--q", "640"),
                "in (0, 1]; got 640. Pass --q 1 for the largest loss alone, or a share such as --q 0.25.",
            ),
            (("--n",), "requires an argument"),
        ),
    ),
    Row(
        "bench",
        works=(
            *("step", "--models", "logistic", "--s", "8", "--q", "4", "--threads", "1", "--rounds", "2"),
            *("--rows", "dense,twopass", "--no-probe", "--out", "b"),  # all kinds of step: tests/lab/bench
        ),
        wrong=(
            (("step", "--models", "lennet"), "osgd bench: --models must be one of lenet, "),
            (("step", "--q", "65"), "osgd bench: --q must be integers from 1 to s = 64; got 65. Leave"),
            (("step", "--rounds", "1"), "osgd bench: --rounds must be at least 2; got 1. Run"),
            (("step", "--q", "x"), "must be integers separated by commas; got 'x'"),
            (("linear", "--parts", "image"), "osgd bench: --parts must be one of images, sparse, growth, errors; got"),
            (("linear", "--rounds", "1"), "1 is not in the range x>=2"),
            (("distributed", "--models", "lennet"), "osgd bench: --models must be one of lenet, "),
            (
                ("distributed", "--ranks", "2,0"),
                "osgd bench: --ranks must be positive; got 0. Run: osgd bench distributed",
            ),
            (("losses", "--losses", "hinges"), "osgd bench: --losses must be one of hinge, triplet, "),
            (("losses", "--s", "0"), "0 is not in the range 1<=x<=512"),
            (("head", "--words", "8192,1"), "osgd bench: --words must be integers of at least 2; got 1. Leave it out"),
            (("head", "--widths", "0"), "osgd bench: --widths must be integers of at least 1; got 0. Leave it out"),
            (("head", "--q", "1,2"), "must be shares in (0, 1] separated by commas; got '1,2'"),
            (("head", "--tokens", "0"), "0 is not in the range x>=1"),
            (("trainers", "--trainers", "lightening-vit"), "osgd bench: --trainers must be one of lightning-lenet, "),
            (("trainers", "--rounds", "1"), "1 is not in the range x>=2"),
            (("trainers", "--q", "2"), "must be shares in (0, 1] separated by commas; got '2'"),
            (("distributed", "--q", "few"), "must be a count such as 16 or a share such as 0.25; got 'few'."),
            (("fly",), "No such command 'fly'"),
        ),
    ),
    Row(
        "playground",
        works=None,
        wrong=((("--port", "70000"), "70000 is not in the range"), (("--colour",), "No such option")),
    ),
]
all_commands = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
all_tables = pytest.mark.parametrize("row", [row for row in TABLE if row.works is not None], ids=lambda row: row.name)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _home_with_a_run(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("ORDERED_SGD_HOME", str(home))
    records, spec = Records(home), ExperimentSpec(epochs=1, seed=99)
    records.begin(spec)
    records.add(spec, EpochRow(1, 64, 0.01, test_error=3.0))
    asked = Request("figure1", ("figure1a",), trials=1).to_dict()
    records.ask({"command": "reproduce", **asked})


def test_the_table_holds_every_command() -> None:
    assert [row.name for row in TABLE] == list(COMMANDS)


@all_commands
def test_help_says_what_the_command_does(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(row.name, "--help") == 0
    assert run(row.name, "-h") == 0
    shown = capsys.readouterr().out
    assert f"Usage: osgd {row.name}" in shown
    assert COMMANDS[row.name].split(":")[0].split(",")[0].split(" that ")[0] in shown


@all_tables
def test_a_good_call_prints_a_table_on_standard_output(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(row.name, *(row.works or ())) == 0
    assert "┃" in capsys.readouterr().out


@all_tables
def test_json_is_all_that_machines_get_on_standard_output(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(row.name, *(row.works or ()), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    if row.document:
        assert isinstance(rows, dict)
        return
    assert all(list(r) == list(rows[0]) for r in rows)
    assert all(isinstance(value, int | float | str | None) for r in rows for value in r.values())


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [(row.name, *wrong) for row in TABLE for wrong in row.wrong],
    ids=lambda v: str(v)[:40],
)
def test_a_wrong_call_gets_one_line_and_exit_code_2(
    name: str, arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(name, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().split("\n")) == 1
    assert err.startswith(f"osgd {name}: ")
    assert text in err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gama") == 2
    assert (
        capsys.readouterr().err == f"osgd: command must be one of {', '.join(COMMANDS)}; got 'gama'. "
        "Did you mean 'gamma'?\n"
    )
    assert run("fly") == 2
    assert "Run: osgd --help" in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gamma", *next(row for row in TABLE if row.name == "gamma").works[:-1], "/proc/nothing/here") == 1
    assert capsys.readouterr().err.startswith("osgd: ")


def test_the_help_of_the_whole_lists_every_command_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from ordered_sgd.lab.cli.main import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    *lines, modules = shown.strip().split("\n")
    assert all(any(line.strip().startswith(name) for line in lines) for name in COMMANDS)
    assert not {"torch", "numpy", "scipy", "matplotlib"} & set(modules.split())


def test_the_installed_command_answers() -> None:
    osgd = Path(sys.executable).with_name("osgd")
    done = subprocess.run([str(osgd), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("osgd 0.")
