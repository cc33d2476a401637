"""What RESULTS.md shows: the requests that ``osgd reproduce results`` carries out, one after the other."""

from ordered_sgd.lab.experiments.recipes.protocols import PROTOCOLS
from ordered_sgd.lab.experiments.requests import Request

_SEMEION = ("semeion-logistic", "semeion-svm", "semeion-lenet", "semeion-lenet-aug")
_MORE = ("semeion-logistic-aug", "mnist-logistic", "mnist-svm")
_SCRIPTS = "authors-code"

RESULTS = (
    *(Request("table1", (*_SEMEION, *_MORE), protocol=protocol) for protocol in PROTOCOLS),
    # A size that shows that the row runs; whole, it takes days.
    Request("table1", ("cifar10-preact-resnet18",), 3, _SCRIPTS, epochs=5, train_size=2000, width=0.25),
    *(Request("table5", _SEMEION, protocol=protocol) for protocol in PROTOCOLS),
    Request("ablation", protocol=_SCRIPTS),
    Request("whole-training", (), 3, _SCRIPTS),
    Request("memory", (), 3, _SCRIPTS),
    Request("batchnorm", (), 3, _SCRIPTS),
    Request("label-noise"),
    Request("figure1"),
)
