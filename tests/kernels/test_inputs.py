"""Arrays of every kind that NumPy has: the answer is NumPy's, its type too, or one line says that there is none."""

from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import kernels
from assay.kernels.bigint_div.dividing import multiply
from assay.kernels.fractalsort import sorting
from assay.record.errors import BadInput

TYPES = "? b B h H i I q Q e f d g F D m8[s] M8[us] S3 S8 U2 >i4 >f8 >u2 >M8[s] >f4".split()
DRAWN = settings(max_examples=40, deadline=None, derandomize=True)


@contextmanager
def one_line():
    with pytest.raises((BadInput, ValueError)) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert caught.type is not UnicodeDecodeError


def answer(call, *others):
    """What a call gives, or None where one line refuses it."""
    try:
        return call(*others)
    except BadInput as told:
        assert "\n" not in str(told)
        return None


def values(dtype, count, seed):
    """Entries of a type: NaN with payloads and both zeros among the floats, extremes among the whole numbers."""
    random, kind = np.random.default_rng(seed), np.dtype(dtype)
    raw = random.integers(0, 256, (count, kind.itemsize), dtype=np.uint8)
    if kind.kind == "b":
        return (raw[:, 0] & 1).astype(bool)
    if kind.kind == "U":
        return np.array([chr(65 + x % 26) for x in raw[:, 0]], kind)
    if kind.kind == "g" or kind.char == "g":
        return random.standard_normal(count).astype(kind)
    return raw.view(kind).ravel()


def laid(x, layout):
    """The same entries, lying otherwise in memory."""
    if layout == "strided":
        return np.repeat(x, 3)[::3]
    if layout == "turned":
        return x[::-1].copy()[::-1]
    if layout == "read-only":
        x = x.copy()
        x.flags.writeable = False
    return x


LAYOUTS = st.sampled_from(("plain", "strided", "turned", "read-only"))


def words(x):
    return x.view(f"u{x.itemsize}") if x.dtype.kind in "biufmM" and x.itemsize <= 8 else x


def same_order(found, x):
    """Equal to NumPy's, and of NaNs and zeros, which NumPy puts in no certain order, the bits that went in, as often.

    NumPy's own vector code gives every NaN the same bits; what it does without is what is asked for here.
    """
    right = np.sort(x)
    assert found.dtype == right.dtype
    assert found.shape == right.shape
    assert type(found) is type(right)
    np.testing.assert_array_equal(found, right)
    assert sorted(words(found).tolist()) == sorted(words(x).tolist())


@pytest.fixture
def few(monkeypatch):
    """Our own sort from the first key on, not only where it pays."""
    monkeypatch.setattr(sorting, "SMALL", 1)


@DRAWN
@given(st.sampled_from(TYPES), LAYOUTS, st.integers(0, 400), st.integers(0, 10**6), st.booleans())
def test_sort_gives_numpys_answer_of_every_type(dtype, layout, count, seed, small):
    x = laid(values(dtype, count, seed), layout if dtype == "i" else layout.replace("read-only", "plain"))
    before, kept = x.copy(), sorting.SMALL
    sorting.SMALL = 1 << 16 if small else 1
    try:
        found = answer(kernels.sort, x)
    finally:
        sorting.SMALL = kept
    np.testing.assert_array_equal(words(np.ascontiguousarray(x)), words(np.ascontiguousarray(before)))
    if found is not None:
        same_order(found, x)
    assert found is not None or np.dtype(dtype).char in "gFDU"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_sorted_nans_keep_their_payloads(dtype, few, tmp_path):
    kind = np.dtype(dtype)
    x = np.array([2, np.nan, -1, np.nan, np.nan, 0] * 200, kind)
    x.view(kind.str.replace("f", "u"))[1::6] += np.arange(200).astype(kind.str.replace("f", "u"))
    x[4::6] = -x[4::6]
    same_order(kernels.sort(x), x)
    made = sorting.index(x)
    same_order(made.materialise(), x)
    assert sorted(words(np.array([made.select(i) for i in range(600, 1200)], x.dtype)).tolist()) == sorted(
        words(x[np.isnan(x)]).tolist()
    )
    np.save(tmp_path / "x.npy", x)
    kernels.sort_file(tmp_path / "x.npy", tmp_path / "y.npy", memory=1 << 15)
    same_order(np.load(tmp_path / "y.npy"), x)


def test_sort_refuses_what_it_would_lose():
    with one_line():
        kernels.sort(np.ma.array([3, 1, 2], mask=[0, 1, 0]))
    for wrong in (np.zeros((2, 2)), np.float64(3.0), [[1], [1, 2]], np.array([1, None]), ["a", 1], object(), {1, 2}):
        with one_line():
            kernels.sort(wrong)
    torch = pytest.importorskip("torch")
    with one_line():
        kernels.sort(torch.ones(3, requires_grad=True))


# ------------------------------------------------------------------------------------------------ products


@DRAWN
@given(st.sampled_from([t for t in TYPES if t[0] not in "mMSU>"] + [">f4", ">f8"]), st.data())
def test_gemm_gives_numpys_answer_or_says_that_it_does_not(dtype, data):
    m, k, n = (data.draw(st.integers(0, 9)) for _ in range(3))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    a, b = (random.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
    layout = data.draw(st.sampled_from(("plain", "columns", "turned", "cut", "read-only", "repeated")))
    a, b = (_matrix_laid(x, layout) for x in (a, b))
    scheme = data.draw(st.sampled_from(("auto", "winograd", "2x3x3")))
    found = answer(kernels.gemm, a, b, scheme)
    if found is not None:
        right = a @ b
        assert (found.dtype, type(found)) == (right.dtype, np.ndarray)
        np.testing.assert_array_equal(found, right)  # small whole numbers: exact in any order
    assert found is not None or np.dtype(dtype).kind not in "f" or dtype in "eg" or not (m and n and k)


def _matrix_laid(x, layout):
    if layout == "columns":
        return np.asfortranarray(x)
    if layout == "turned":
        return x[::-1, ::-1].copy()[::-1, ::-1]
    if layout == "cut":
        return np.pad(x, 2)[2:-2, 2:-2]
    if layout == "repeated":
        return np.broadcast_to(x[:1], x.shape) if len(x) else x
    return laid(x, layout)


def test_gemm_refuses_what_it_would_lose():
    a, masked = np.eye(3), np.ma.array(np.eye(3), mask=np.eye(3))
    for x, y in ((masked, a), (a, masked), (a, [[1.0] * 3] * 3), (a.astype(int), a.astype(int)), (a[0], a), (a > 0, a)):
        with one_line():
            kernels.gemm(x, y)
    with one_line():
        kernels.gemm_weights(masked, 3)


def test_gemm_of_tensors_has_torchs_gradients():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    a, b = (torch.tensor(random.random(shape), requires_grad=True) for shape in ((6, 4), (4, 8)))
    c, d = (x.detach().clone().requires_grad_() for x in (a, b))
    weight = torch.tensor(random.random((6, 8)))
    found, right = kernels.gemm(a, b, "winograd"), c @ d
    assert found.requires_grad
    assert found.dtype == right.dtype
    assert torch.allclose(found, right)
    (found.square() * weight).sum().backward()
    (right.square() * weight).sum().backward()
    assert torch.allclose(a.grad, c.grad)
    assert torch.allclose(b.grad, d.grad)
    assert torch.autograd.gradcheck(lambda x, y: kernels.gemm(x, y, "winograd"), (a, b))
    assert torch.autograd.gradgradcheck(lambda x, y: kernels.gemm(x, y, "winograd"), (a, b))
    with torch.no_grad():
        assert not kernels.gemm(a, b).requires_grad
    with torch.autograd.forward_ad.dual_level(), one_line():
        kernels.gemm(torch.autograd.forward_ad.make_dual(a.detach(), a.detach()), b.detach())
    with one_line():
        kernels.gemm(a, b.detach().numpy())
    with one_line():
        kernels.gemm(a.detach().numpy(), b)
    with one_line():
        kernels.gemm_weights(b, 6)
    kept = kernels.gemm_weights(b.detach(), 6, "winograd")
    assert torch.allclose(kernels.gemm(a.detach(), kept), right)
    with one_line():
        kernels.gemm(a, kept)
    turned = torch.complex(c.detach(), c.detach()).conj().imag  # negated when it is read
    assert torch.allclose(kernels.gemm(turned, b.detach()), turned @ b.detach())
    with one_line():
        kernels.gemm(a.detach().to_sparse(), b.detach())
    for kind in (torch.float16, torch.bfloat16, torch.int64, torch.complex64):
        with one_line():
            kernels.gemm(a.detach().to(kind), b.detach().to(kind))


NUMBERS = [t for t in TYPES if t.strip(">")[0] not in "mMSU"]


@DRAWN
@given(
    st.sampled_from([t for t in NUMBERS if t not in ("e", "g", "F", "D") and t[0] != ">"]),
    st.sampled_from(NUMBERS),
    st.data(),
)
def test_spmv_gives_scipys_answer_or_says_that_it_does_not(kind, other, data):
    rows, cols = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    a = scipy.sparse.csr_array(random.integers(0, 3, (rows, cols)).astype(kind))
    x = laid(random.integers(-3, 4, cols).astype(other), data.draw(LAYOUTS))
    found = answer(lambda: kernels.spmv(a, where="cpu") @ x)
    if found is not None:
        right = a @ x
        assert found.dtype == right.dtype
        np.testing.assert_array_equal(found, right)
    assert found is not None or other in "eg"


def test_spmv_keeps_whole_numbers_whole():
    big = 2**62 + 1
    a = scipy.sparse.csr_array(np.array([[big, 0], [1, 3]]))
    found = kernels.spmv(a) @ np.array([1, 2])
    assert (found.dtype, found.tolist()) == (np.int64, [big, 7])
    single = scipy.sparse.csr_array(np.array([[1.0]], np.float32))
    assert (kernels.spmv(single) @ np.array([1 + 2.0**-40])).tolist() == [1 + 2.0**-40]
    assert (kernels.spmv(single) @ np.array([1 + 2j])).tolist() == [1 + 2j]


def test_spmv_and_pagerank_refuse_what_they_would_lose():
    a = kernels.spmv(scipy.sparse.eye_array(3, format="csr"))
    for wrong in (np.ma.array(np.ones(3), mask=[0, 1, 0]), np.ones((3, 1)), np.float64(1), ["a"] * 3, np.ones(0), None):
        with one_line():
            a @ wrong
    for wrong in (np.eye(3), scipy.sparse.csr_array((3, 2)), scipy.sparse.csr_array((0, 0)), "links"):
        with one_line():
            kernels.pagerank(wrong)
    links = scipy.sparse.coo_array(([1, 1, 0, 1], ([0, 0, 1, 1], [1, 1, 1, 0])), (2, 2))  # one twice, one of nothing
    assert kernels.pagerank(links)[0].tolist() == pytest.approx([0.5, 0.5])
    with one_line():
        kernels.pagerank(links, damping=1.5)


# ------------------------------------------------------------------------------------------- everything else


@DRAWN
@given(st.sampled_from(NUMBERS), st.lists(st.integers(-100, 100), max_size=5), st.integers(1, 9))
def test_divide_takes_rows_of_whole_numbers_of_any_type(dtype, numbers, divisor):
    u = np.array(numbers).astype(dtype)
    found = answer(kernels.divide, u, divisor)
    if found is not None:
        assert found == tuple(map(list, zip(*(divmod(int(x), divisor) for x in u), strict=True))) or not numbers
    assert (found is not None) == (u.dtype.kind in "iu" or (not numbers and u.dtype.kind in "iu"))


def test_numbers_that_are_none_are_refused():
    for call in (
        lambda: kernels.divide(1.5, 2), lambda: kernels.divide([1], 2.0), lambda: kernels.divide(None, 3),
        lambda: kernels.divide(np.ma.array([7, 8], mask=[0, 1]), 2), lambda: kernels.divide("12", 3),
        lambda: kernels.divide(np.ones((2, 2)), np.ones((2, 2))), lambda: kernels.gcd(12, 18),
        lambda: kernels.gcd([1.0], [2]), lambda: kernels.mulmod([2.0], [3], 5), lambda: kernels.mulmod(2, 3, 5),
        lambda: kernels.mulmod([True], [3], 5), lambda: multiply(["2"], [3]),
        lambda: kernels.divide_limbs(np.ones((1, 1), ">u4"), [1]), lambda: kernels.divide(True, 2),
    ):  # fmt: skip
        with one_line():
            call()
    assert kernels.divide(np.int64(7), np.uint8(2)) == (3, 1)
    assert kernels.divide(np.array(7), 2) == (3, 1)


def test_attention_refuses_what_it_would_lose():
    q, c = np.ones((1, 2, 576)), np.ones((1, 3, 576))
    for query, latent in ((np.ma.array(q, mask=q), c), (q * 1j, c), (q, np.ma.array(c, mask=c)), (q, c.astype(int))):
        with one_line():
            kernels.mla_decode(query, latent)
    assert kernels.mla_decode(q.astype(">f8"), c[:, ::-1]).dtype == np.float32
    k, q = np.random.default_rng(0).normal(size=(1, 2, 300, 16)), np.ones((1, 4, 16))
    for wrong in (k * 1j, np.ma.array(k, mask=k), "keys"):
        with one_line():
            kernels.summarise_kv(wrong, wrong, [8, 64])
        with one_line():
            kernels.summarise_kv(k, k, [8, 64], queries=wrong)
    made = kernels.summarise_kv(k, k, [8, 64])
    for wrong in (q * 1j, np.ma.array(q, mask=q)):
        with one_line():
            kernels.sparse_decode(made, wrong, 64)
    for wrong in ([[0.9 + 1j, 0.2, 0.1]], np.ma.array([[0.9, 0.2, 0.1]], mask=[[0, 1, 0]])):
        with one_line():
            kernels.allocate(wrong, (8, 16, 32), 16)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i2", "f4", ">f4", ">f8", "f8"])
def test_clouds_of_any_type_are_thinned_alike(dtype):
    points = np.random.default_rng(0).integers(0, 60, (200, 3))
    right = kernels.radius(points.astype(float), 20).tolist()
    assert kernels.radius(points.astype(dtype)[::-1][::-1], 20).tolist() == right


def test_clouds_that_would_be_rounded_are_refused():
    near = np.array([[2**60, 0, 0], [2**60 + 1, 0, 0], [0, 0, 0]])
    for wrong in (near, near.astype(np.uint64), np.ones((3, 3)) * 1j, np.ma.array(np.ones((3, 3)), mask=np.eye(3))):
        with one_line():
            kernels.radius(wrong, 2)


def test_numbers_beside_the_arrays_are_looked_at_too(tmp_path):
    """Threads below 0, sizes that are cut to whole ones or none, a budget of half a block, a row that is no matrix."""
    keys, eye = np.arange(1 << 17)[::-1] % 1000, scipy.sparse.eye_array(3, format="csr")
    k, q = np.random.default_rng(0).normal(size=(1, 2, 300, 16)), np.ones((1, 4, 16))
    made = kernels.summarise_kv(k, k, [8, 64])
    np.save(tmp_path / "x.npy", keys)
    for threads in (-1, 1.5, "two"):
        for call in (
            lambda: kernels.sort(keys, threads=threads), lambda: kernels.spmv(eye, threads=threads),  # noqa: B023
            lambda: kernels.goldbach_up_to(70_000, threads=threads),  # noqa: B023
            lambda: kernels.mla_decode(np.ones((1, 2, 576)), np.ones((1, 3, 576)), threads=threads),  # noqa: B023
        ):  # fmt: skip
            with one_line():
                call()
    for sizes in ([8, 7], [8, 0], [8, -8], [8.5, 64], [8, 1 << 40], None, np.ma.array([8, 64], mask=[0, 1])):
        with one_line():
            kernels.summarise_kv(k, k, sizes)
    for wrong in (k * np.nan, k * 1e300, k[:, :, :0]):
        with one_line():
            kernels.summarise_kv(wrong, wrong, [8, 64])
    for budget in (-1, 1.5, None, "all"):
        with one_line():
            kernels.sparse_decode(made, q, budget)
    assert kernels.sparse_decode(made, q, 10**30).shape == q.shape
    for call in (
        lambda: kernels.sparse_decode(None, q, 64), lambda: kernels.sparse_decode(made, q * 1e300, 64),
        lambda: kernels.mla_decode(np.full((1, 2, 576), 1e300), np.ones((1, 3, 576))),
        lambda: kernels.allocate([[0.9, 0.2, 0.1]], (8, 16.5, 32), 16), lambda: kernels.allocate([[0.9]], None, 16),
        lambda: kernels.gemm_weights(np.eye(4), 2.5), lambda: kernels.gemm_weights(np.eye(4), -1),
        lambda: kernels.decide_gemm((600, 600)), lambda: kernels.decide_gemm((600, 600, 600), "int8"),
        lambda: kernels.decide_gemm((600, 600, 0)), lambda: kernels.spmv(scipy.sparse.coo_array(np.ones(4))),
        lambda: kernels.pagerank(scipy.sparse.coo_array(np.ones(4))),
        lambda: kernels.divide_limbs(np.ma.ones((1, 2), dtype=np.uint32), np.ones((1, 1), np.uint32)),
        lambda: kernels.sort_file(tmp_path / "x.npy", tmp_path / "y.npy", memory=0),
        lambda: kernels.sort_file(tmp_path / "x.npy", tmp_path / "none" / "y.npy"),
    ):  # fmt: skip
        with one_line():
            call()
    kernels.sort_file(str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))
    assert np.load(tmp_path / "y.npy").tolist() == np.sort(keys).tolist()


def test_infinities_of_one_part_stay_out_of_the_other():
    found = kernels.spmv(scipy.sparse.eye_array(3, format="csr")) @ np.array([complex(1, np.inf), 2j, 3])
    assert found.tolist() == [complex(1, np.inf), 2j, 3]
