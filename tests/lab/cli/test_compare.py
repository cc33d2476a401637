"""`osgd compare`, `reproduce`, `report` and `records` on small data, one after the other."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.cli.compare import command as compare
from ordered_sgd.lab.cli.main import main
from ordered_sgd.lab.cli.records import command as records
from ordered_sgd.lab.cli.report import command as report
from ordered_sgd.lab.cli.reproduce import command as reproduce

QUICK = ("--trials", "2", "--epochs", "2", "--workers", "1", "--quiet")
SMALL = ("--data", "digits", *QUICK)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def run(command: object, *arguments: str) -> Result:
    done = CliRunner().invoke(command, arguments)  # type: ignore[arg-type]
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def test_a_comparison_prints_sentences_and_tables_and_writes_a_page(tmp_path: Path) -> None:
    done = run(compare, *SMALL, "--no-tune", "--q", "8", "--adam")
    first, fixed, adam, time, *_ = done.stdout.splitlines()
    assert first.startswith("q never moved: training accuracy stayed below 80 %, so ordered SGD was plain SGD. Try --q")
    assert fixed.startswith("Ordered SGD with q = 8 (")
    assert adam.startswith("Ordered Adam ")
    assert re.match(
        r"A step of the linear model on scikit-learn's digits .* at q = s/8 takes \d\.\d\d of SGD's time", time
    )
    for name in ("sgd", "ordered", "random", "ordered q=8", "adam", "ordered adam"):
        assert f"│ {name.rjust(0)}" in done.stdout or name in done.stdout
    page = (tmp_path / "compare.html").read_text()
    assert page.count("<svg") == 3  # curves, which samples were chosen, the hardest of them
    assert "% of the samples seen needed no backward pass" in page
    assert "http://" not in re.sub(r"http://www.w3.org\S*|http://purl.org\S*|http://creativecommons\S*", "", page)
    assert "<script" not in page
    before = json.loads(run(records, "list", "--json").stdout)
    again = run(compare, *SMALL, "--no-tune", "--q", "8", "--adam", "--json")
    assert json.loads(run(records, "list", "--json").stdout) == before  # nothing was run twice
    assert len(json.loads(again.stdout)) == 6


def test_without_options_lenet_is_compared_on_semeion_which_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERED_SGD_DATA", str(tmp_path / "no-data"))
    done = run(compare, "--trials", "2", "--epochs", "8", "--lr", "0.03", "--no-tune", "--workers", "1", "--quiet")
    first, random, own, lenet, *_ = done.stdout.splitlines()
    assert first.startswith("At a learning rate of 0.03, ordered SGD")
    assert "a random choice of as many samples" in random
    assert re.match(
        r"A step of LeNet on Semeion handwritten digits at q = s/\d+ takes .* with the same gradient\.", own
    )
    assert lenet.startswith("A step of LeNet on 28x28 images at q = s/8 takes ")
    recorded = list(csv.DictReader(io.StringIO(run(records, "export").stdout)))
    assert {row["engine"] for row in recorded if row["method"] == "ordered"} == {"dense", "rows"}
    compiled = [row for row in recorded if row["compile_seconds"]]
    assert {row["method"] for row in compiled} == {"ordered", "random"}
    assert all(float(row["compile_seconds"]) > 0 for row in compiled)
    assert own in (tmp_path / "compare.html").read_text().replace("&#39;", "'")


def test_the_batch_sampler_is_an_arm_with_its_recall() -> None:
    done = run(compare, *SMALL, "--no-tune", "--sampler", "--json")
    rows = {row["method"]: row for row in json.loads(done.output)}
    assert list(rows) == ["sgd", "ordered", "random", "sampler"]
    assert 0 < rows["sampler"]["recall"] <= 1
    assert rows["sampler"]["scored"] <= 1


def test_the_engine_with_a_memory_is_an_arm_with_its_recall(tmp_path: Path) -> None:
    done = run(compare, *SMALL, "--no-tune", "--memory", "--recall", "0.9", "--json")
    rows = {row["method"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["sgd", "ordered", "random", "ordered memory recall=0.9"]
    assert 0.8 < rows["ordered memory recall=0.9"]["recall"] <= 1
    assert rows["ordered"]["recall"] is None
    assert "recall is the share" in (tmp_path / "compare.html").read_text()
    table = run(compare, *SMALL, "--no-tune", "--memory").stdout
    assert "recall" in table
    assert "recall" not in run(compare, *SMALL, "--no-tune").stdout


@pytest.mark.slow
def test_the_search_for_a_rate_is_on_for_digits(tmp_path: Path) -> None:
    given = ("--data", "digits", "--trials", "1", "--epochs", "1", "--workers", "1", "--quiet", "--json")
    rows = json.loads(run(compare, *given).stdout)
    assert sum(" at " in row["method"] for row in rows) == 3
    assert (tmp_path / "compare.html").read_text().count("<svg") == 4


def test_a_table_of_one_s_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["kind,height,weight"] + [
        f"{'cat' if i % 3 else 'dog'},{1000 * (i % 3 > 0) + rng.normal():.3f},{rng.normal():.3f}" for i in range(120)
    ]
    (tmp_path / "pets.csv").write_text("\n".join(lines))
    given = (*SMALL, "--data", "pets.csv", "--target", "kind", "--s", "16", "--lr", "0.1", "--epochs", "8", "--json")
    rows = json.loads(run(compare, *given).stdout)
    assert [row["method"] for row in rows] == ["sgd", "ordered", "random", "ordered q=0.5", "ordered loss mass"]
    assert rows[0]["error"] < 20  # columns are brought to one scale
    (tmp_path / "pets.csv").write_text("\n".join(lines[:60]))  # another file under the same name is not the same run
    others = json.loads(run(compare, *given).stdout)
    assert others[0]["cross_entropy"] != rows[0]["cross_entropy"]


def messy(path: Path, target: str) -> None:
    """A table as people have them: semicolons, an index, text, gaps, and a rare class or a number to be predicted."""
    rng = np.random.default_rng(1)
    lines = [f";size;colour;gap;{target}"]
    for at in range(300):
        size, red = rng.normal(), rng.random() < 0.5
        signal = 2 * size + red + rng.normal()
        label = f"{10 + 3 * signal:.3f}" if target == "price" else ("$rare_<b>" if signal > 3 else "often 🐈")
        lines.append(
            f"{at};{size:.3f};{'red' if red else 'blue'};{'NA' if at % 5 == 0 else f'{rng.normal():.2f}'};{label}"
        )
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_table_with_text_gaps_and_a_rare_class(tmp_path: Path, model: str) -> None:
    messy(tmp_path / "own.csv", "kind")
    given = (
        *SMALL,
        "--data",
        "own.csv",
        "--model",
        model,
        "--class-weight",
        "balanced",
        "--lr",
        "0.05",
        "--epochs",
        "6",
    )
    done = run(compare, *given)
    assert "left out: 0 (it numbers the rows)" in done.stderr
    assert "missing numbers become the median, and a column says so: gap (60)" in done.stderr
    assert "recall of $rare_<b> (" in done.stdout
    if model == "logistic":
        assert re.search(r"The last epoch of the compiled linear model took \d+\.\d\d of SGD's time\.", done.stdout)
    rows = {row["method"]: row for row in json.loads(run(compare, *given, "--json").stdout)}
    assert {"sgd balanced weights", "ordered balanced weights"} < set(rows)
    rare = 0  # "$rare..." comes before "often"
    assert rows["sgd balanced weights"]["recalls"][rare] > rows["sgd"]["recalls"][rare]
    assert rows["sgd"]["auc"] > 0.9
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert "recall of $rare_&lt;b&gt;" in page
    assert "often 🐈" in page


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_table_with_a_number_to_be_predicted(tmp_path: Path, model: str) -> None:
    messy(tmp_path / "own.csv", "price")
    given = (*SMALL, "--data", "own.csv", "--model", model, "--lr", "0.05", "--s", "16", "--epochs", "8")
    done = run(compare, *given)
    assert "target price: a number to be predicted" in done.stderr
    assert "points of unexplained variance" in done.stdout
    rows = json.loads(run(compare, *given, "--json").stdout)
    assert [row["method"] for row in rows] == ["sgd", "ordered q=0.5", "random", "ordered loss mass"]
    assert rows[0]["r2"] > 0.6
    assert rows[0]["error"] == pytest.approx(100 * (1 - rows[0]["r2"]))
    assert 1 < rows[0]["mae"] < 5  # in the target's own units, whose noise has a deviation of 3
    assert rows[0]["cross_entropy"] is None
    assert "Unexplained variance" in (tmp_path / "compare.html").read_text(encoding="utf-8")


def test_a_regression_on_many_columns_does_not_diverge_and_the_lower_rate_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 150))  # one direction holds nearly all the variance
    y = x[:, :3].sum(axis=1)
    lines = [",".join([*(f"c{at}" for at in range(150)), "y"])]
    lines += [",".join(f"{value:.5f}" for value in (*row, target)) for row, target in zip(x, y, strict=True)]
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    given = (*SMALL, "--data", "wide.csv", "--s", "16", "--epochs", "4", "--json")
    done = run(compare, *given)
    assert "learning rate 0.0003: with more, squared losses may diverge" in done.stderr
    assert all(row["r2"] > 0.9 for row in json.loads(done.stdout))
    worse = json.loads(run(compare, *given, "--lr", "0.01").stdout)  # a rate that is given is kept
    assert not all(row["diverged"] == 0 and row["r2"] > 0.9 for row in worse)


def test_kernels_and_torch_train_the_same_regression(tmp_path: Path) -> None:
    messy(tmp_path / "own.csv", "price")
    found = [
        json.loads(run(compare, *SMALL, "--data", "own.csv", "--engine", engine, "--json").stdout)[:2]
        for engine in ("kernels", "dense")
    ]
    for one, other in zip(*found, strict=True):
        assert one["r2"] == pytest.approx(other["r2"], abs=1e-4)


def test_kernels_and_torch_weigh_classes_alike(tmp_path: Path) -> None:
    messy(tmp_path / "own.csv", "kind")
    given = (*SMALL, "--data", "own.csv", "--class-weight", "balanced", "--json")
    found = [json.loads(run(compare, *given, "--engine", engine).stdout)[-2] for engine in ("kernels", "dense")]
    assert found[0]["method"] == "sgd balanced weights"
    assert found[0]["cross_entropy"] == pytest.approx(found[1]["cross_entropy"], abs=1e-4)


def test_a_model_that_does_not_fit_the_target_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messy(tmp_path / "own.csv", "price")
    said = error_of(capsys, "--data", "own.csv", "--model", "svm")
    assert "must fit the model and its loss; got model svm and loss hinge-sum for numbers to be predicted. Use" in said


def test_a_label_of_the_test_set_that_is_put_right_makes_other_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {f"x_{part}": rng.normal(size=(40, 2)).astype(np.float32) for part in ("train", "test")}
    parts |= {f"y_{part}": np.arange(40) % 2 for part in ("train", "test")}
    found = []
    for _ in range(2):
        np.savez(tmp_path / "own.npz", **parts)
        found.append(json.loads(run(compare, *SMALL, "--data", "own.npz", "--s", "8", "--json").stdout)[0]["error"])
        parts["y_test"] = 1 - parts["y_test"]
    assert found[0] + found[1] == pytest.approx(100)


MINE = """
import numpy as np
from torch import nn
from ordered_sgd.lab.data import from_arrays

x = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
data = from_arrays(x, (x[:, 0] > 0).astype(int))

def make(): return data, nn.Linear(3, 2)
def wrong(): return 3
def narrow(): return data, nn.Linear(4, 2)
def one_class(): return data, nn.Linear(3, 1)
def pair(): return data, nn.LSTM(3, 2)
def fails(): raise KeyError("no\\nsuch key")
def refused(): return from_arrays(x[0], [1]), nn.Linear(3, 2)
def other_classes(): return (from_arrays(x, [*"abc"] * 33 + ["a"]), from_arrays(x, [*"bc"] * 50)), nn.Linear(3, 3)
def other_columns(): return (data, from_arrays(x[:, :2], (x[:, 0] > 0).astype(int))), nn.Linear(3, 2)
def too_few(): return from_arrays(x[:2], [0, 1]), nn.Linear(3, 2)

class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.classifier = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 2)
    def forward(self, x):
        return self.classifier(self.convolution(x).relu().view(len(x), -1))

images = np.random.default_rng(0).integers(0, 256, size=(100, 3, 8, 8), dtype="uint8")
def viewed(): return from_arrays(images, np.arange(100) % 2), Viewed()
"""


@pytest.fixture
def _mine(tmp_path: Path) -> None:
    (tmp_path / "mine_for_a_test.py").write_text(MINE)
    (tmp_path / "broken_for_a_test.py").write_text("def make(:")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that is refused before anything is recorded or written."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *SMALL, *arguments])
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1), said
    assert not list(Path().glob("**/*.html"))
    assert not Path("home").exists()
    return said.err.strip()


@pytest.mark.usefixtures("_mine")
def test_a_data_set_and_a_model_of_one_s_own(tmp_path: Path) -> None:
    given = (*SMALL, "--data", "mine_for_a_test:make", "--s", "16")
    assert len(json.loads(run(compare, *given, "--json").stdout)) == 3
    told = " ".join(run(compare, *given).stdout.split())
    assert "mine_for_a_test:make, 2 epochs" in told
    assert "logistic" not in told + (tmp_path / "compare.html").read_text()
    done = CliRunner().invoke(compare, [*SMALL, "--data", "mine_for_a_test:wrong"])
    assert isinstance(done.exception, ArgumentError)
    assert "must return (data, model); got int" in str(done.exception)


@pytest.mark.usefixtures("_mine")
def test_a_network_of_one_s_own_that_takes_a_view_of_its_convolution() -> None:
    rows = json.loads(run(compare, *SMALL, "--data", "mine_for_a_test:viewed", "--s", "16", "--json").stdout)
    assert [row["diverged"] for row in rows] == [0, 0, 0]


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "mine_for_a_test:narrow",
            r"mine_\S+ must return a model that fits its data; got RuntimeError: mat1 .*\(2, 3\)\. C",
        ),
        ("mine_for_a_test:one_class", r"got an output of shape \(2, 1\)\. Let it return a tensor of shape \(2, 2\)"),
        ("mine_for_a_test:pair", "got an output of type tuple. Let it return a tensor"),
        ("mine_for_a_test:fails", r"must run without an error; got KeyError: .*such key'. Correct it; .*osgd --debug"),
        ("mine_for_a_test:refused", r"x must have shape \(n, features\)"),
        (
            "mine_for_a_test:other_classes",
            r"classes are numbered alike; got 3 classes \(a, b, c\) to train on and 2 classes \(b, c\) to test on",
        ),
        ("mine_for_a_test:other_columns", r"must return two sets of samples alike; got shapes \(3,\) and \(2,\)"),
        ("mine_for_a_test:too_few", "must return samples for a training and a test part; got 2 of 2 classes"),
        ("mine_for_a_test:none", "must name a function that can be imported; got module .* has no attribute 'none'"),
        ("broken_for_a_test:make", "must name a module that can be imported; got SyntaxError: .* Correct it"),
    ],
)
def test_a_function_that_fails_or_does_not_fit_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    assert re.search(text, error_of(capsys, "--data", name))


@pytest.mark.usefixtures("_mine")
def test_options_that_would_be_ignored_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--data", "mine_for_a_test:make")
    said = error_of(capsys, *own, "--model", "lenet")
    assert said.endswith(
        "--model must be used without a function; got --data mine_for_a_test:make. Leave --model out: "
        "the function returns the model."
    )
    for data in (own, ("--data", "digits"), ("--data", "arrays.npz")):
        said = error_of(capsys, *data, "--target", "kind")
        assert f"--target must be used with a table: a text or Parquet file; got --data {data[1]}. Leave" in said
    said = error_of(capsys, "--recall", "0.9")
    assert "--recall must be used with --memory or --engine memory; got 0.9. Add --memory, or leave" in said


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--model", "lenet", "--engine", "kernels"), "size must be at least 16; got 8"),
        (("--adam", "--engine", "kernels"), r"engine='kernels' must train .*; got logistic, sgd, .* adam, .* Use"),
        (("--data", "mine_for_a_test:make", "--engine", "kernels"), "engine='kernels' must train a linear model"),
        (("--model", "figure1a"), "data for figure1a must be points in the plane"),
        (("--engine", "memory", "--recall", "0"), r"recall must be a share in \(0, 1\]; got 0"),
    ],
)
def test_what_does_not_fit_is_refused_without_preparing_a_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], text: str
) -> None:
    monkeypatch.setattr("ordered_sgd.lab.experiments.run.Training", None)
    assert re.search(text, error_of(capsys, *given))


@pytest.mark.parametrize("place", ["/proc/x.html", "a_file/page.html", "a_folder"])
def test_a_page_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "a_file").write_text("")
    (tmp_path / "a_folder").mkdir()
    said = error_of(capsys, "--out", place)
    assert re.match(rf"osgd compare: --out must be a file that can be written; got {place} \(.+\)\. Name ", said)


def test_what_was_found_is_printed_though_the_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compare.html").write_text("the old one")

    def full(path: Path, text: str) -> None:
        assert path.read_text() == "the old one"
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("ordered_sgd.lab.cli.compare.write", full)
    for form in ((), ("--json",)):
        done = CliRunner().invoke(compare, [*SMALL, "--no-tune", "--trials", "1", *form])
        assert isinstance(done.exception, OSError)
        assert "ordered" in done.stdout


@pytest.mark.slow
def test_rows_of_the_paper_and_everything_on_one_page(tmp_path: Path) -> None:
    done = run(reproduce, "figure1", "--rows", "figure1a,figure1b", *QUICK)
    assert "figure1a: ordered SGD" in done.stdout
    assert "[2 of 400 epochs]" in done.stdout
    run(compare, *SMALL, "--no-tune")
    run(report, "--markdown", "RESULTS.md", "--figures", "pictures")
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "RESULTS.md").read_text()
    assert "Figure 1" in page
    assert "[2 of 400 epochs]" in text
    assert text.startswith("# Results\n")
    assert "| sgd |" in text
    assert (
        len(list((tmp_path / "pictures").glob("*.png"))) == 6
    )  # boundaries, curves of both, chosen, hardest, Figure 2
    rows = list(csv.DictReader(io.StringIO(run(records, "export").stdout)))
    assert len({(row["run_id"], row["epoch"]) for row in rows}) == len(rows) > 0
    assert len(json.loads(run(records, "export", "--format", "json").stdout)) == len(rows)
    run(records, "rm", rows[0]["run_id"])
    assert "Not finished: records: runs must be recorded" in run(report).stdout + (tmp_path / "report.html").read_text()


def test_the_list_tells_runs_and_hours(tmp_path: Path) -> None:
    rows = json.loads(run(reproduce, "--list", "--json").stdout)
    assert {"table1", "table5", "figure8", "ablation"} <= {row["exhibit"] for row in rows}
    assert all(row["hours"] > 0 for row in rows)
    only = json.loads(run(reproduce, "table1", "--rows", "semeion-*", "--list", "--json").stdout)
    assert {row["row"] for row in only} >= {"semeion-logistic", "semeion-lenet-aug"}


def test_without_records_the_way_to_some_is_told() -> None:
    assert "make some: osgd compare" in run(records, "list").stderr
    done = CliRunner().invoke(report, [])
    assert "an experiment must be recorded; got none" in str(done.exception)
