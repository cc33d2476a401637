"""Pickles read as data: what arrays of bytes need is allowed, nothing else, and nothing runs."""

import io
import pickle
import pickletools
import struct

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.unpickle import PickledArray, read_pickle
from tests.lab.data.small_files import python2_pickle, short

CALLS: list[str] = []


def call(text: str) -> str:
    """What a hostile pickle would like to have called."""
    CALLS.append(text)
    return text


class Hostile:
    def __reduce__(self):
        return call, ("executed",)


@pytest.fixture
def read(tmp_path):
    def read(data: bytes, steps: int = 10_000):
        path = tmp_path / "batch"
        path.write_bytes(data)
        return read_pickle(path, 1 << 24, steps), path

    return read


ARRAYS = [
    np.arange(12, dtype=np.uint8).reshape(3, 4),
    np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4)),
    np.arange(256, dtype=np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS, ids=["C", "Fortran", "every byte"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("key", ["data", b"data"])
def test_what_pickle_writes_is_read_as_pickle_reads_it(read, array, protocol, key):
    given = {key: array, "numbers": [0, 255, 256, 70_000, -1, 2**40], "more": {"a": (None, True, False, (), (1,))}}
    data = pickle.dumps(given, protocol=protocol)
    found, path = read(data)
    assert_array_equal(found["data"].uint8(path), pickle.loads(data)[key])
    assert found["numbers"] == given["numbers"]
    assert found["more"] == given["more"]


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_a_pickle_of_python_2_is_read_with_either_name_of_numpy_s_core(read, module):
    found, path = read(python2_pickle(3, module=module))
    old = pickle.loads(python2_pickle(3, module=b"numpy._core.multiarray"), encoding="latin1")
    assert_array_equal(found["data"].uint8(path), old["data"])
    assert found["labels"] == old["labels"]


def test_a_pickle_that_calls_a_function_is_refused_and_nothing_is_called(read):
    for protocol in (0, 1, 2, 3, 4, 5):
        with pytest.raises(DataError, match="batch must be a pickle of plain data; got "):
            read(pickle.dumps({"data": Hostile()}, protocol=protocol))
    assert CALLS == []
    pickle.loads(pickle.dumps(Hostile()))
    assert CALLS == ["executed"]  # which Python's own unpickler does
    CALLS.clear()


@pytest.mark.parametrize(
    "name",
    ["os system", "builtins eval", "builtins exec", "numpy fromfile", "numpy.core.multiarray scalar", "_codecs decode"],
)
def test_other_names_are_refused_by_name(read, name):
    module, function = name.split()
    for data in (
        b"\x80\x02}(" + short(b"data") + f"c{module}\n{function}\n".encode() + b"U\x01a\x85Ru.",
        b"\x80\x04}(\x8c\x04data"
        + b"".join(b"\x8c" + bytes((len(p),)) + p.encode() for p in (module, function))
        + b"\x93u.",
    ):
        with pytest.raises(DataError, match=f"got a call for '{module}.{function}'"):
            read(data)


def with_value(code: bytes) -> bytes:
    """A dictionary whose value the instructions make."""
    return b"\x80\x02}(" + short(b"data") + code + b"u."


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
DTYPE = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R"
PLAIN = b"(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"P1\n", "the instruction PERSID"),
        (b"Nq\x00Q", "the instruction BINPERSID"),
        (b"\x82\x01", "the instruction EXT1"),
        (b"(cos\nsystem\no", "a call for 'os.system'"),
        (b"(ios\nsystem\n", "the instruction INST"),
        (b"cnumpy\nndarray\n)\x81", "the instruction NEWOBJ"),
        (b"N2", "the instruction DUP"),
        (b"G" + bytes(8), "the instruction BINFLOAT"),
        (b"h\x07", "a reference to nothing"),
        (b"NN\x85R", "a call of something that is no function"),
        (b"cnumpy\nndarray\nNN\x86R", "a call of numpy.ndarray"),
        (b"cnumpy\ndtype\nNN\x86R", "something else where a name is due"),
        (b"N}b", "a state for something that has none"),
        (b"cnumpy\nndarray\n}b", "a state for something that has none"),
        (RECONSTRUCT + b"}b", "an array without its five parts"),
        (RECONSTRUCT + b"(NNNNNtb(NNNNNtb", "an array without its five parts"),
        (DTYPE + b"(K\x03" + short(b"|") + short(b"a") + b"NNtb", "a dtype with fields"),
        (b"]" + short(b"a") + b"Ns", "no dict where one is filled"),
        (b"}Na", "no list where one is filled"),
        (b"}NNs", "a dictionary with other keys than str and bytes"),
        (b"}(NNu", "a dictionary with other keys than str and bytes"),
        (b"c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0ascii\x86R", "text that is not encoded as Latin-1"),
        (b"c_codecs\nencode\nX\x03\0\0\0\xe2\x82\xacX\x06\0\0\0latin1\x86R", "'latin-1' codec can't encode"),
        (b"T\xff\xff\xff\x7fabc", "an argument that is cut short"),
        (b"B\xff\xff\xff\xffabc", "an argument that is cut short"),
        (b"\x8e" + b"\xff" * 7 + b"\x7fabc", "an argument that is cut short"),
        (b"\xff", "the instruction ff"),
        (b"cnumpy\ndtype", "a name without an end|a call for"),
        (b"c" + b"a" * 300, "a name without an end"),
        (b"c\xff\n\n", "'ascii' codec can't decode"),
        (b"X\x01\0\0\0\xff", "'utf-8' codec can't decode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_everything_that_an_array_of_bytes_does_not_need_is_refused(read, code, reason):
    with pytest.raises(DataError, match=f"batch must be a pickle of plain data; got {reason}"):
        read(with_value(code))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no end"),
        (b"\x80\x02}", "no end"),
        (b"\x80\x02].", "something else than one dictionary"),
        (b"\x80\x02}}.", "something else than one dictionary"),
        (b"\x80\x02(}.", "something else than one dictionary"),
        (b"\x80\x02}.more", "bytes after its end"),
        (b"\x80\x02.", "something else than one dictionary"),
        (b"\x80\x02\x86.", "an instruction without its operand"),
        (b"\x80\x02}u.", "an instruction without its mark"),
        (b"\x80\x02q\x00.", "no object where one is filled"),
        (b"\x80\x02NN\x93.", "something else where a name is due"),
    ],
)
def test_a_pickle_without_one_dictionary_is_refused(read, data, reason):
    with pytest.raises(DataError, match=f"got {reason}"):
        read(data)


def state(shape: bytes, data: bytes, dtype: bytes = DTYPE + PLAIN) -> bytes:
    return with_value(RECONSTRUCT + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (state(b"K\x02K\x02\x86", short(b"abc")), r"as many bytes as the shape \(2, 2\) needs"),
        (state(b"K\x02\x85", short(b"abc")), "as many bytes as the shape"),
        (state(b"J\xff\xff\xff\xff\x85", short(b"abc")), "an array with a shape"),
        (state(b"\x88\x85", short(b"a")), "an array with a shape"),
        (state(b"]", short(b"abc")), "an array with a shape"),
        (state(b"\x8a\x10" + b"\xff" * 15 + b"\x0fK\x00\x86", b"K\x00"), "as many bytes as the shape in its header"),
        (state(b"K\x03\x85", b"]"), "as many bytes as the shape"),
        (state(b"K\x01\x85", b"X\x01\0\0\0a"), "as many bytes as the shape"),
        (state(b"K\x03\x85", short(b"abc"), b"N"), "an array of unsigned bytes; got another dtype"),
        (state(b"K\x01\x85", b"]", DTYPE.replace(b"\x02u1", b"\x01O")), "an array of unsigned bytes"),
        (with_value(RECONSTRUCT), "an array of unsigned bytes"),
    ],
)
def test_an_array_whose_parts_do_not_agree_is_refused(read, data, reason):
    found, path = read(data)
    assert isinstance(found["data"], PickledArray)
    with pytest.raises(DataError, match=f"batch must hold {reason}"):
        found["data"].uint8(path)


def test_the_number_of_instructions_is_bounded(read, peak):
    data = b"\x80\x02}(" + short(b"data") + b"](" + b"]" * 1_000_000 + b"eu."
    with pytest.raises(DataError, match="got more than 10,000 instructions"):
        read(data)
    assert peak(lambda: read(data)) < 8 << 20  # and a million lists would take 64 MB


def test_a_memo_index_of_two_billion_allocates_nothing(read, peak):
    data = with_value(b"Nr\xff\xff\xff\x7f") + b"more"
    assert peak(lambda: read(data)) < 1 << 20  # Python's own unpickler makes room for twice as many


def test_text_repeated_from_the_memo_is_not_encoded_for_ever(read, peak):
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"q\x01"
    encode = b"c_codecs\nencode\nh\x01X\x06\0\0\0latin1\x86R"
    data = with_value(b"(" + text + encode * 1000 + b"t")
    with pytest.raises(DataError, match="more encoded text than the file holds"):
        read(data)
    assert peak(lambda: read(data)) < 4 << 20


def test_nested_tuples_shared_by_the_memo_take_no_exponential_time(read):
    laughs = b"Nq\x00" + b"".join(
        b"h" + bytes((at,)) * 1 + b"h" + bytes((at,)) + b"\x86q" + bytes((at + 1,)) for at in range(100)
    )
    with pytest.raises(DataError, match="a dictionary with other keys"):
        read(with_value(b"}" + laughs + b"Ns"))
    read(with_value(b"(" + laughs + b"t"))  # as a value it is nothing to look at


def test_deep_nesting_crashes_nothing(read):
    found, _ = read(with_value(b"]" * 1 + b"]" * 0), steps=10_000_000)
    assert found["data"] == []
    deep = with_value(b"(" + b"N" + b"\x85" * 200_000 + b"t")
    read(deep, steps=10_000_000)
    with pytest.raises(DataError, match=r"something else than one dictionary|an instruction without"):
        read(b"\x80\x02" + b"(" * 100_000 + b"}.", steps=10_000_000)


def test_every_instruction_that_is_allowed_is_python_s_with_an_argument_of_the_same_size():
    from ordered_sgd.lab.data import unpickle

    lengths = {-2: 1, -3: 4, -4: 4, -5: 8}  # how pickletools says that the length comes first
    for code in pickletools.opcodes:
        if (found := unpickle._INSTRUCTIONS.get(code.code.encode("latin-1"))) and found[0] != "names":
            size = code.arg.n if code.arg else 0
            assert found[1] == lengths.get(size, size), code.name
    assert set(unpickle._INSTRUCTIONS) <= {code.code.encode("latin-1") for code in pickletools.opcodes}


def test_the_file_may_not_be_larger_than_its_limit(tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": bytes(1000)}))
    with pytest.raises(DataError, match="batch must take at most 100 bytes"):
        read_pickle(path, 100, 100)


def test_python_s_own_unpickler_agrees_about_what_is_valid(read):
    """Every prefix of a pickle is refused, as Python refuses it."""
    data = python2_pickle(1, module=b"numpy._core.multiarray")
    for end in [*range(200), *range(len(data) - 20, len(data))]:
        with pytest.raises(DataError):
            read(data[:end])
        with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError)):
            pickle.Unpickler(io.BytesIO(data[:end]), encoding="latin1").load()
