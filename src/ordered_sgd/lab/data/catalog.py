"""The data sets that `load` knows by name: their files, sources and contents."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import platformdirs

from ordered_sgd.lab.data.dataset import Split


@dataclass(frozen=True)
class Download:
    """A published file: its addresses, and how to verify it.

    Parameters
    ----------
    path : str
        Path relative to the data root, in torchvision's layout.
    urls : tuple of str
        Official address, then mirrors.
    checksum : str
        ``"md5:..."`` or ``"sha256:..."``, as published.
    size : int
        Size in bytes.
    members : mapping, default={}
        Files to extract from a tar archive: path relative to the root -> checksum. The archive is then deleted.
    """

    path: str
    urls: tuple[str, ...]
    checksum: str
    size: int
    members: Mapping[str, str] = field(default_factory=dict)  # path below the root -> checksum


@dataclass(frozen=True)
class Entry:
    """A named data set: its contents, terms and files.

    Parameters
    ----------
    name : str
        Name for `load`.
    title : str
        Name for people.
    classes : tuple of str
        Names of the classes.
    shape : tuple of int
        Shape of one sample: (channels, height, width) or (features,).
    counts : mapping
        Number of samples in the published set, by split.
    licence : str
        Terms of use.
    downloads : tuple of Download, default=()
        Files to download; empty for generated data.
    included : bool, default=False
        Whether the package brings the set, so that nothing needs to be downloaded.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one sample: (channels, height, width) or (features,)
    counts: Mapping[Split, int]  # samples of the published set
    licence: str
    downloads: tuple[Download, ...] = ()  # empty: made by a function, nothing to download
    included: bool = False


def data_root() -> Path:
    """The folder of data files: ``ORDERED_SGD_DATA``, read at every call, or the platform's cache folder."""
    given = os.environ.get("ORDERED_SGD_DATA")
    return Path(given).expanduser() if given else platformdirs.user_cache_path("ordered-sgd") / "data"


def places(path: str) -> tuple[str, ...]:
    """Possible paths of a catalog file below the root, its own first.

    Files of Semeion and SVHN may be in the root itself, and IDX files may be unpacked.

    >>> places("svhn/test_32x32.mat")
    ('svhn/test_32x32.mat', 'test_32x32.mat')
    >>> places("MNIST/raw/t10k-labels-idx1-ubyte.gz")[1:]
    ('MNIST/raw/t10k-labels-idx1-ubyte', 'MNIST/raw/t10k-labels.idx1-ubyte')
    """
    pure = PurePosixPath(path)
    if str(pure.parent) in ("semeion", "svhn"):
        return path, pure.name
    if path.endswith("-ubyte.gz"):
        raw = path.removesuffix(".gz")
        return path, raw, raw.replace("-idx", ".idx")
    return (path,)


def find(root: Path, path: str) -> Path | None:
    """The first of the `places` of a file that exists, or None."""
    return next((root / place for place in places(path) if (root / place).exists()), None)


_DIGITS = tuple("0123456789")
_CIFAR_TERMS = "none stated; academic use, cite the 2009 report of A. Krizhevsky"
_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_STANFORD = ("http://ufldl.stanford.edu/housenumbers/",)
_UCI = ("https://archive.ics.uci.edu/ml/machine-learning-databases/semeion/",)
# The authors' repository, at the commit that brought the permutation.
_AUTHORS = ("https://raw.githubusercontent.com/k9k2/qSGD/13c17d095bf86b3fb2109ae136b5fdb0c07133cd/dataset/semeion/",)

IDX_FILES = {
    ("train", "images"): "train-images-idx3-ubyte.gz",
    ("train", "labels"): "train-labels-idx1-ubyte.gz",
    ("test", "images"): "t10k-images-idx3-ubyte.gz",
    ("test", "labels"): "t10k-labels-idx1-ubyte.gz",
}


def _download(path: str, folders: tuple[str, ...], checksum: str, size: int) -> Download:
    name = PurePosixPath(path).name
    return Download(path, tuple(folder + name for folder in folders), checksum, size)


def _idx_entry(
    name: str,
    title: str,
    classes: tuple[str, ...],
    licence: str,
    folder: str,
    mirrors: tuple[str, ...],
    sums: tuple[tuple[str, int], ...],  # SHA-256 and size, in the order of IDX_FILES
) -> Entry:
    files = zip(IDX_FILES.values(), sums, strict=True)
    downloads = tuple(_download(f"{folder}/raw/{file}", mirrors, f"sha256:{sha}", size) for file, (sha, size) in files)
    return Entry(name, title, classes, (1, 28, 28), {"train": 60_000, "test": 10_000}, licence, downloads)


def _made(name: str, title: str, n: int) -> Entry:
    return Entry(name, title, ("0", "1"), (2,), {"train": n, "test": n}, "Apache-2.0, made by this package")


_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# fmt: off
_CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest",
    "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard",
    "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum",
    "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper",
    "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf",
    "woman", "worm",
)
# fmt: on

_ENTRIES = (
    Entry(
        "semeion",
        "Semeion handwritten digits",
        _DIGITS,
        (1, 16, 16),
        {"train": 1000, "test": 593},  # the split of the paper's authors
        "CC BY 4.0",
        (
            _download(
                "semeion/semeion.data",
                _UCI,
                "sha256:f43228ae3da5ea6a3c95069d53450b86166770e3b719dcc333182128fe08d4b1",
                2_889_702,
            ),
            _download(
                "semeion/random_index.npy",
                _AUTHORS,
                "sha256:f5c264df30af7d8dead33ccd53b729128470a8e7e3bd07355cadea2ec603bdcb",
                12_872,
            ),
        ),
        included=True,
    ),
    _idx_entry(
        "mnist",
        "MNIST handwritten digits",
        _DIGITS,
        "CC BY-SA 3.0",
        "MNIST",
        (
            "http://yann.lecun.com/exdb/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        ),
    ),
    _idx_entry(
        "kmnist",
        "Kuzushiji-MNIST, cursive Japanese characters",
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        "CC BY-SA 4.0",
        "KMNIST",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/", "https://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        (
            ("51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4", 18_165_135),
            ("e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17", 29_497),
            ("edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5", 3_041_136),
            ("20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c", 5_120),
        ),
    ),
    _idx_entry(
        "fashion-mnist",
        "Fashion-MNIST, articles of clothing",
        _FASHION,
        "MIT",
        "FashionMNIST",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        (
            ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
    ),
    Entry(
        "cifar10",
        "CIFAR-10, colour photographs of ten kinds",
        _CIFAR10,
        (3, 32, 32),
        {"train": 50_000, "test": 10_000},
        _CIFAR_TERMS,
        (
            Download(
                "cifar-10-python.tar.gz",
                tuple(folder + "cifar-10-python.tar.gz" for folder in _TORONTO),
                "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                170_498_071,
                {
                    "cifar-10-batches-py/data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
                    "cifar-10-batches-py/data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
                    "cifar-10-batches-py/data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
                    "cifar-10-batches-py/data_batch_4": "md5:634d18415352ddfa80567beed471001a",
                    "cifar-10-batches-py/data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
                    "cifar-10-batches-py/test_batch": "md5:40351d587109b95175f43aff81a1287e",
                    "cifar-10-batches-py/batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
                },
            ),
        ),
    ),
    Entry(
        "cifar100",
        "CIFAR-100, colour photographs of a hundred kinds",
        _CIFAR100,
        (3, 32, 32),
        {"train": 50_000, "test": 10_000},
        _CIFAR_TERMS,
        (
            Download(
                "cifar-100-python.tar.gz",
                tuple(folder + "cifar-100-python.tar.gz" for folder in _TORONTO),
                "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                169_001_437,
                {
                    "cifar-100-python/train": "md5:16019d7e3df5f24257cddd939b257f8d",
                    "cifar-100-python/test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
                    "cifar-100-python/meta": "md5:7973b15100ade9c7d40fb424638fde48",
                },
            ),
        ),
    ),
    Entry(
        "svhn",
        "Street View House Numbers, cropped digits",
        _DIGITS,
        (3, 32, 32),
        {"train": 73_257, "test": 26_032},
        "non-commercial use only",
        (
            _download(
                "svhn/train_32x32.mat",
                _STANFORD,
                "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                182_040_794,
            ),
            _download(
                "svhn/test_32x32.mat",
                _STANFORD,
                "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                64_275_384,
            ),
        ),
    ),
    Entry(
        "digits",
        "scikit-learn's digits (UCI optical recognition, test part)",
        _DIGITS,
        (1, 8, 8),
        {"train": 1438, "test": 359},
        "CC BY 4.0",
    ),
    _made("figure1a", "Figure 1 (a): two blobs and a dozen points between them", 200),
    _made("figure1b", "Figure 1 (b): one blob and four points beside it", 200),
    _made("figure1c", "Figure 1 (c): two large and two small rings", 1000),
    _made("figure1d", "Figure 1 (d): the rings of (c), for a smaller network", 1000),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
