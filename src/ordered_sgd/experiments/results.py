"""What RESULTS.md shows: the requests that ``osgd reproduce results`` carries out, one after the other."""

from ordered_sgd.experiments.recipes import PROTOCOLS
from ordered_sgd.experiments.reproduce import Request

_ROWS = ("semeion-logistic", "semeion-svm", "semeion-lenet", "mnist-logistic", "mnist-svm")

RESULTS = (
    *(Request("table1", _ROWS, protocol=protocol) for protocol in PROTOCOLS),
    Request("ablation", ("semeion-logistic-*", "semeion-svm-*"), protocol="authors-code"),
    Request("figure1"),
)
