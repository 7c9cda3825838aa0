# SPDX-License-Identifier: Apache-2.0
"""Texts that are no UTF-8: names of files may be any bytes, which Python has as single surrogates; errors name them all the same."""

import os

import pytest

import lade

ODD = "odd\udcff"  # as os.fsdecode() has the bytes b"odd\xff"


@pytest.fixture
def folder(tmp_path):
    """A folder whose name is no text."""
    path = os.path.join(os.fsencode(tmp_path), b"odd\xff")
    try:
        os.mkdir(path)
    except OSError:
        pytest.skip("names of files are UTF-8 here")
    return path


@pytest.mark.parametrize("as_text", [False, True])
def test_errors_name_files_of_any_name(pool, device, folder, as_text):
    missing = os.path.join(folder, b"missing")
    path = os.fsdecode(missing) if as_text else missing
    with lade.Pipeline(device, pool=pool) as pipeline:
        with pytest.raises(lade.Error, match=r"odd(\\xff|\?)/missing"):
            pipeline.read_into(path, 0, lade.DeviceAllocator(device).alloc(8)).result()
    with pytest.raises(lade.Error, match=r"odd(\\xff|\?)/missing"):
        lade.RecordIndex(fields="jpg").add_tar(path)
    with pytest.raises(lade.InvalidArgumentError, match=r"odd(\\xff|\?)/missing"):
        pool.snapshot(path)  # no suffix that means a format
    with pytest.raises(lade.IOError, match=r"odd(\\xff|\?)/missing/there.json"):
        pool.snapshot(os.path.join(path, b"there.json" if not as_text else "there.json"))


def odd_class():
    class Odd:
        __qualname__ = ODD

        def __repr__(self):
            return ODD

    return Odd()


class OddProtocol:
    def __cuda_stream__(self):
        return odd_class()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda pool: pool.empty(8, ODD), r"dtype is .*expected a name"),
        (lambda pool: pool.empty(8, odd_class()), r"dtype is odd\\udcff, a .*odd\\udcff; expected a name"),
        (lambda pool: pool.empty(odd_class()), r"shape is odd\\udcff, a .*odd\\udcff; expected"),
        (lambda pool: lade.device(ODD), r"odd\\udcff"),
        (lambda pool: pool.record(pool.empty(8), odd_class()), r"stream is a .*odd\\udcff; expected"),
        (lambda pool: pool.record(pool.empty(8), OddProtocol()), r"gave odd\\udcff; expected"),
        (lambda pool: lade.PinnedPool(pool.device, sources=[ODD]), r"sources has .*udcff"),
        (lambda pool: lade.DeviceAllocator(pool.device, flags=[ODD]), r"flags has .*udcff"),
        (lambda pool: lade.DeviceAllocator(odd_class()), r"device is a .*odd\\udcff"),
    ],
)
def test_refusals_name_what_is_no_text(pool, call, words):
    with pytest.raises(lade.InvalidArgumentError, match=words):
        call(pool)


class Interrupted:
    """A number that is interrupted while it is asked for."""

    def __index__(self):
        raise KeyboardInterrupt

    def __float__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["shape", "extent", "offset", "timeout"])
def test_what_a_number_raises_passes(pool, device, tmp_path, name):
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    buffer = lade.DeviceAllocator(device).alloc(8)
    with lade.Pipeline(device, pool=pool) as pipeline:
        ticket = pipeline.read_into(path, 0, buffer)
        calls = {
            "shape": lambda: pool.empty(Interrupted()),
            "extent": lambda: pool.empty((2, Interrupted())),
            "offset": lambda: pipeline.read_into(path, Interrupted(), buffer),
            "timeout": lambda: ticket.wait(Interrupted()),
        }
        with pytest.raises(KeyboardInterrupt):
            calls[name]()
        ticket.result()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda device: lade.PinnedPool(device).empty(1, "uint8\0"), r"dtype is 'uint8\\x00'; expected"),
        (lambda device: lade.device("cpu:0\0"), r'device is "cpu:0\\x00"; expected "cuda"'),
        (lambda device: lade.software_device(clock="cpu\0"), r'clock is "cpu\\x00"; expected "cpu"'),
        (lambda device: lade.Pipeline(device, storage="auto\0"), r'storage is "auto\\x00"; expected "auto"'),
        (lambda device: lade.PinnedPool(device, settings="pinned_max_mb:64\0,wrong"), r"settings is 'pinned_max_mb:64\\x00,wrong'; expected"),
        (lambda device: lade.DeviceAllocator(device, settings="\0wrong"), r"settings is '\\x00wrong'; expected"),
        (lambda device: lade.RecordIndex(fields="jpg\0cls"), r"fields is 'jpg\\x00cls'; expected"),
        (lambda device: lade.RecordIndex(fields=("jpg", "\0")), r"fields is 'jpg,\\x00'; expected"),
        (lambda device: lade.RecordIndex(fields="jpg").add([(0, 0, 1)], key="one\0two"), r"key is 'one\\x00two'; expected"),
    ],
)
def test_null_characters_are_refused(device, call, words):
    """What followed them was not read."""
    with pytest.raises(lade.InvalidArgumentError, match=words):
        call(device)
