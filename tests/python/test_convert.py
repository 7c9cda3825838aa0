# SPDX-License-Identifier: Apache-2.0
"""Numbers that are converted on the way to a device, against ml_dtypes, and torch where it is: bit for bit, except which NaN a NaN is."""

import numpy as np
import pytest

import lade
import lade.safetensors as ours

ml_dtypes = pytest.importorskip("ml_dtypes")
writer = pytest.importorskip("safetensors.numpy")

KINDS = {"F32": np.dtype("float32"), "F16": np.dtype("float16"), "BF16": np.dtype(ml_dtypes.bfloat16),
         "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn)}
BITS = {1: np.dtype("uint8"), 2: np.dtype("uint16"), 4: np.dtype("uint32")}
PAIRS = [(source, target) for source in KINDS for target in KINDS if source != target]


def floats():
    """F32 of every exponent, with mantissas at and beside each place where one of the smaller types rounds; and many others."""
    signs_and_exponents = np.arange(512, dtype=np.uint32) << 23
    edges = np.unique([mantissa + nudge for bit in (11, 12, 13, 15, 16, 19, 20, 21, 22) for step in range(8)
                       for mantissa in [step << bit & 0x7FFFFF] for nudge in (-1, 0, 1) if 0 <= mantissa + nudge < 1 << 23])
    anywhere = np.random.default_rng(7).integers(0, 1 << 32, 1 << 18, np.uint32)
    return np.concatenate([(signs_and_exponents[:, None] + edges.astype(np.uint32)).ravel(), anywhere]).view(np.float32)


def numbers(kind):
    """All of a small type, or floats()."""
    return floats() if kind == "F32" else np.arange(1 << 8 * KINDS[kind].itemsize, dtype=BITS[KINDS[kind].itemsize]).view(KINDS[kind])


def same(got, expected):
    is_nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
    bits = BITS[got.dtype.itemsize]
    np.testing.assert_array_equal(got.view(bits)[~is_nan], expected.view(bits)[~is_nan])


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "numbers.safetensors"
    writer.save_file({kind: numbers(kind) for kind in KINDS} | {"I64": np.arange(5)}, path)
    return path


@pytest.mark.filterwarnings("ignore:.*(overflow|invalid value).*:RuntimeWarning")
def test_every_number_is_that_of_ml_dtypes(path):
    for target, dtype in KINDS.items():
        loaded = ours.load_file(path, "cpu", framework="np", dtype=target)
        assert list(loaded) == list(ours.load_file(path, "cpu", framework="np"))
        np.testing.assert_array_equal(loaded.pop("I64"), np.arange(5))
        for source, got in loaded.items():
            assert got.dtype == dtype
            same(got, numbers(source).astype(np.float32).astype(dtype))


def test_every_number_is_that_of_torch(path):
    torch = pytest.importorskip("torch")
    names = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn}
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    plain = ours.load_file(path, "cpu", framework="pt")
    for target, dtype in names.items():
        for source, got in ours.load_file(path, "cpu", framework="pt", dtype=dtype).items():
            if source == "I64":
                continue
            expected = plain[source].to(dtype)
            if target == "F8_E4M3" and not torch.tensor(1e6).to(dtype).isnan():  # PyTorch 2.15: what is too large becomes the largest
                too_large = plain[source].double().abs() > 464  # half way to the number after 448 is rounded to even
                expected = expected.view(torch.uint8).masked_fill(too_large, 0x7F).view(dtype)
            is_nan = expected.float().isnan()
            assert got.dtype == dtype and torch.equal(got.float().isnan(), is_nan)
            bits = signed[dtype.itemsize]
            assert torch.equal(got.view(bits)[~is_nan], expected.view(bits)[~is_nan]), (source, target)


def test_types_by_name(path):
    loaded = ours.load_file(path, "cpu", framework="np", tensors=["F32", "F16", "I64"], dtype={"F32": ml_dtypes.bfloat16, "F16": "float32"})
    assert {name: str(value.dtype) for name, value in loaded.items()} == {"F32": "bfloat16", "F16": "float32", "I64": "int64"}
    with pytest.raises(lade.InvalidArgumentError, match="tensor \"I64\": .*expected 0, 21, which is I64"):
        ours.load_file(path, "cpu", framework="np", dtype={"I64": "F32"})
    with pytest.raises(ours.SafetensorError, match="File does not contain tensor x"):
        ours.load_file(path, "cpu", framework="np", dtype={"x": "F32"})
    for wrong in ("F64", "half", np.int32, 3):
        with pytest.raises(lade.InvalidArgumentError, match="dtype is .*; expected one of F32, F16, BF16, F8_E5M2, F8_E4M3"):
            ours.load_file(path, "cpu", framework="np", dtype=wrong)


def test_into_tensors_of_other_types_and_parts(device, path, tmp_path):
    path = tmp_path / "m.safetensors"
    values = np.random.default_rng(3).standard_normal((6, 4, 10)).astype(np.float32)
    writer.save_file({"w": values, "i": np.arange(6), "rest": values}, path)
    allocator = lade.DeviceAllocator(device)
    whole = {"w": allocator.empty(values.shape, "float16"), "i": allocator.empty((6,), "int64")}
    with pytest.raises(lade.InvalidArgumentError, match="tensor `w` is F16 .*; expected F32 .*, as in the file; convert=True converts"):
        ours.load_into(whole, path, strict=False)
    assert ours.load_into(whole, path, strict=False, convert=True) == ([], ["rest"])
    same(np.from_dlpack(whole["w"]), values.astype(np.float16))
    np.testing.assert_array_equal(np.from_dlpack(whole["i"]), np.arange(6))
    for index, shape in ((np.s_[:, 1:3], (6, 2, 10)), (np.s_[2], (4, 10)), (np.s_[..., 3:], (6, 4, 7)), (np.s_[4:6, :], (2, 4, 10)),
                         (np.s_[:0], (0, 4, 10))):
        for dtype in ("float32", "float16"):
            part = {"w": allocator.empty(shape, dtype)}
            ours.load_into(part, path, strict=False, convert=True, slices=lambda name, shape: index)
            np.testing.assert_array_equal(np.from_dlpack(part["w"]), values[index].astype(dtype))
    part = {"w": allocator.empty((6, 2, 10), "float32")}
    for index in (np.s_[:, ::2], np.s_[1:, :2]):
        with pytest.raises(lade.InvalidArgumentError, match="expected one range of one dimension"):
            ours.load_into(part, path, strict=False, slices=lambda name, shape: index)
    with pytest.raises(lade.InvalidArgumentError, match=r"tensor `w` is F32 \(6, 2, 10\); expected F32 \(6, 3, 10\)"):
        ours.load_into(part, path, strict=False, slices=lambda name, shape: np.s_[:, :3])
    with pytest.raises(TypeError, match="slices"):
        ours.load_into(part, path, slices={})
