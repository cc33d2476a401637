"""What RESULTS.md shows: the requests that ``osgd reproduce results`` carries out, one after the other."""

from ordered_sgd.experiments.recipes import PROTOCOLS
from ordered_sgd.experiments.reproduce import Request

_SEMEION = ("semeion-logistic", "semeion-svm", "semeion-lenet")
_MNIST = ("mnist-logistic", "mnist-svm")

RESULTS = (
    *(Request("table1", (*_SEMEION, *_MNIST), protocol=protocol) for protocol in PROTOCOLS),
    *(Request("table5", _SEMEION, protocol=protocol) for protocol in PROTOCOLS),
    Request("ablation", ("semeion-logistic-*", "semeion-svm-*"), protocol="authors-code"),
    Request("figure1"),
    Request(
        "table1", ("cifar10-preact-resnet18",), trials=3, protocol="authors-code", epochs=5, train_size=2000, width=0.25
    ),
)
