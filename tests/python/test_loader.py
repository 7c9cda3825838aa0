# SPDX-License-Identifier: Apache-2.0
"""Loaders: batches of records, on software devices."""

import gc
import io
import os
import pickle
import tarfile
import threading

import numpy as np
import pytest

import lade

COUNT = 53


def label_of(record):
    return record * 7 + 1


def image_of(record):
    return np.random.default_rng(record).integers(0, 256, (3, 4, 5), dtype=np.uint8)


def member(archive, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def tar(tmp_path):
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        for record in range(COUNT):
            member(archive, f"{record:05}.img", image_of(record).tobytes())
            member(archive, f"{record:05}.label", label_of(record).to_bytes(8, "little"))
    return path


LAYOUT = {"img": ("uint8", (3, 4, 5)), "label": ("int64", ())}


@pytest.fixture
def made(tar, device):
    """A function that makes a loader of the tar file."""

    def make(batch_size=8, **options):
        options = {"fields": "img,label", "device": device, "layout": LAYOUT, "convert": np.asarray, **options}
        return lade.Loader(tar, batch_size, **options)

    return make


def labels(batches):
    return [label for batch in batches for label in batch["label"].tolist()]


def test_batches_have_the_records(made):
    loader = made()
    assert len(loader) == 7 and len(loader.index) == COUNT
    seen = 0
    for number, batch in enumerate(loader):
        assert (batch.number, batch.epoch, len(batch)) == (number, 0, 8 if number < 6 else 5)
        assert batch.numbers() == list(range(seen, seen + len(batch)))
        assert batch.keys() == [f"{record:05}" for record in batch.numbers()]
        assert batch.lengths("img") == [60] * len(batch)
        assert batch["img"].shape == (len(batch), 3, 4, 5) and batch["label"].dtype == np.int64
        for at, record in enumerate(batch.numbers()):
            assert (batch["img"][at] == image_of(record)).all() and batch["label"][at] == label_of(record)
            assert (batch.records(0)[at] == image_of(record).ravel()).all()
        seen += len(batch)
    assert seen == COUNT and loader.stats()["records"] >= COUNT


def test_each_loop_is_an_epoch(made):
    loader = made(shuffle=True, seed=3)
    epochs = [labels(loader) for _ in range(3)]
    assert all(sorted(epoch) == [label_of(record) for record in range(COUNT)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert [labels(made(shuffle=True, seed=3))] == epochs[:1]


def test_epochs_end_for_next_and_begin_again_for_a_loop(made):
    loader = made(epochs=2, shuffle=True)
    epochs = [labels(loader) for _ in range(4)]
    assert epochs[2:] == epochs[:2] and epochs[0] != epochs[1] and len(epochs[0]) == COUNT
    assert next(loader, None) is None
    assert labels(made(epochs=1)) == labels(made())
    ended = made(epochs=1)
    labels(ended)
    state = ended.state_dict()
    assert labels(made(epochs=1, state=state)) == []  # what is left


def test_next_goes_on_over_epochs(made):
    loader = made(epochs=2)
    assert [batch.epoch for batch in iter(lambda: next(loader, None), None)] == [0] * 7 + [1] * 7


def test_a_loop_after_one_that_was_left_begins_an_epoch(made):
    loader, whole = made(shuffle=True), made(shuffle=True)
    epochs = [[batch.numbers() for batch in whole] for _ in range(3)]
    for batch in loader:
        if batch.number == 2:
            break
    del batch
    assert [batch.numbers() for batch in loader] == epochs[1]
    next(iter(loader))
    assert next(loader).epoch == 2  # goes on there
    assert [batch.numbers() for batch in loader] == epochs[2][2:]
    left = iter(loader)
    assert [batch.epoch for batch in loader] == [3] * 7  # no batch was taken: it is at the beginning
    del left


def test_a_loop_that_is_left_at_once_reads_no_more(made):
    """Nothing that was read ahead is dropped between epochs that reach their ends."""
    loader = made(epochs=3)
    native = loader._native
    assert [sum(1 for _ in loader) for _ in range(3)] == [7, 7, 7] and loader._native is native
    assert sum(1 for _ in loader) == 7 and loader._native is not native


def test_a_state_is_of_a_place_in_a_loop(made):
    loader = made()
    for batch in loader:
        if batch.number == 2:
            state = loader.state_dict()
            break
    del batch
    loader.load_state_dict(state)
    assert [batch.number for batch in loader] == [3, 4, 5, 6]
    assert [batch.number for batch in loader] == [7, 8, 9, 10, 11, 12, 13]


def test_names_with_numbers_in_braces_are_several_files(tmp_path, device):
    for number in range(8, 12):
        (tmp_path / f"rows-{number:03d}.bin").write_bytes(bytes([number]) * 20)
    (tmp_path / "{1..2}.bin").write_bytes(bytes(30))
    loader = lade.Loader(f"{tmp_path}/rows-{{008..011}}.bin", 8, record_bytes=10, device=device)
    assert [int(value) for batch in loader for value in np.from_dlpack(batch[0])[:, 0]] == [8, 8, 9, 9, 10, 10, 11, 11]
    assert len(lade.Loader([str(tmp_path / "{1..2}.bin")], 8, record_bytes=10, device=device).index) == 3  # a file of that name
    with pytest.raises(lade.IOError, match="rows-012"):
        lade.Loader(f"{tmp_path}/rows-{{011..012}}.bin", 8, record_bytes=10, device=device)
    with pytest.raises(lade.InvalidArgumentError, match="numbers that rise"):
        lade.Loader(f"{tmp_path}/rows-{{2..1}}.bin", 8, record_bytes=10, device=device)


@pytest.mark.parametrize("braces", ["{8..999999999}", "{0..9}" * 30])
def test_names_of_more_files_than_there_are_end_at_the_first_that_is_missing(tmp_path, device, braces):
    """Regression: all names were made before a file was opened, in more time and memory than there is."""
    for number in (8, 9):
        (tmp_path / f"{number}.bin").write_bytes(bytes(20))
    with pytest.raises(lade.IOError, match="No such file"):
        lade.Loader(f"{tmp_path}/{braces}.bin", 8, record_bytes=10, device=device)


@pytest.mark.parametrize("fields", ["imgg,cls", "jpg", ["png", "txt"]])
def test_a_misspelt_field_names_those_that_there_are(tmp_path, device, fields):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a/0.img", "a/0.cls", "a/1.img", "a/1.cls"):
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises((lade.FormatError, lade.InvalidArgumentError), match="have 'img', 'cls'"):
        lade.Loader(tmp_path / "a.tar", 1, fields=fields, device=device)


def test_drop_last_and_length(made):
    loader = made(drop_last=True)
    assert len(loader) == 6 and [len(batch) for batch in loader] == [8] * 6
    assert [batch.epoch for batch in loader] == [1] * 6


def test_drop_last_with_batch_bytes_leaves_neighbours_alone(tmp_path, device):
    """Regression: the batch that is left out was written all the same, beyond the block of the one before."""
    path = tmp_path / "words.tar"
    with tarfile.open(path, "w") as archive:
        for number, size in enumerate((64, 64, 200000)):
            member(archive, f"{number}.txt", bytes([number + 1]) * size)
    allocator, stream = lade.DeviceAllocator(device), device.stream()
    neighbours = [allocator.alloc(512, stream) for _ in range(500)]
    for neighbour in neighbours:
        lade.fill_async(device, neighbour, 7, stream)
    stream.synchronize()
    del neighbours[250]
    loader = lade.Loader(path, 2, batch_bytes=1 << 20, drop_last=True, epochs=1, prefetch=1, fields="txt", device=device, allocator=allocator,
                         stream=stream, convert=np.asarray)
    assert [bytes(part) for part in next(loader)["txt"]] == [b"\1" * 64, b"\2" * 64]
    gc.collect()
    assert next(loader, None) is None and loader.stats()["batches"] == 1
    del loader
    assert all((np.from_dlpack(neighbour) == 7).all() for neighbour in neighbours)


@pytest.mark.parametrize("batch_bytes", [0, 130, 200, 300, 1 << 20])
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_loop_has_all_of_an_epoch_with_batch_bytes(made, batch_bytes, drop_last):
    """Regression: with both limits a loop ended where fewer records than batch_size were left, though several batches of them came."""
    options = {"batch_bytes": batch_bytes, "drop_last": drop_last, "padded": True}
    whole = [(batch.epoch, batch.numbers()) for batch in iter(lambda loader=made(epochs=2, **options): next(loader, None), None)]
    for loader in (made(epochs=2, **options), made(**options)):
        for epoch in range(2):
            assert [batch.numbers() for batch in loader] == [numbers for of, numbers in whole if of == epoch]


@pytest.mark.parametrize("equal_ranks", [False, True])
def test_ranks_share_the_records(made, equal_ranks):
    shares = []
    for rank in range(3):
        loader = made(shuffle=True, rank=rank, world=3, equal_ranks=equal_ranks)
        batches = list(map(lambda batch: batch["label"].copy(), loader))
        assert len(batches) == len(loader)
        shares.append(np.concatenate(batches).tolist())
    everything = [label for share in shares for label in share]
    assert len(set(everything)) == len(everything) == (COUNT // 3 * 3 if equal_ranks else COUNT)
    assert {len(share) for share in shares} == ({17} if equal_ranks else {17, 18})


@pytest.mark.parametrize("at", [0, 1, 6, 7, 9])
def test_state_resumes_exactly(made, at):
    loader = made(shuffle=True, epochs=2)
    whole = labels(iter(lambda: next(loader, None), None))
    loader = made(shuffle=True, epochs=2)
    before = labels(next(loader) for _ in range(at))
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    assert all(isinstance(value, int) for value in state.values())
    resumed = made(shuffle=True, epochs=2, state=state)
    assert before + labels(iter(lambda: next(resumed, None), None)) == whole
    loader.load_state_dict(state)
    assert labels(iter(lambda: next(loader, None), None)) == whole[len(before):]


def test_state_is_not_ahead_of_the_consumer(made):
    """What a loop has looked at to see that its epoch is over was not handed out."""
    loader = made(skip_unreadable=True, shuffle=True)
    assert len(labels(loader)) == COUNT
    state = loader.state_dict()
    assert labels(made(skip_unreadable=True, shuffle=True, state=state)) == labels(loader)


def test_state_is_not_ahead_where_the_last_batch_cannot_be_read(tmp_path, device):
    """The end of an epoch is seen by the first batch of the next one, which stays to be handed out."""
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(range(30)) * 10)
    index = lade.RecordIndex()
    index.add_fixed(path, 10)
    os.truncate(path, 200)

    def make(state=None):
        return lade.Loader(index, 10, device=device, skip_unreadable=True, state=state)

    loader = make()
    assert [batch.number for batch in loader] == [0, 1]
    resumed = make(loader.state_dict())
    assert [batch.number for batch in loader] == [3, 4] == [batch.number for batch in resumed]


def test_state_of_another_set_is_refused(made, tmp_path, device):
    state = made().state_dict()
    with pytest.raises(lade.InvalidArgumentError):
        made(seed=1, shuffle=True, state=state)
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(COUNT * 4))
    with pytest.raises(lade.InvalidArgumentError):
        lade.Loader(other, 8, record_bytes=4, device=device, state=state)
    loader = made()
    for broken in (None, {}, {**state, "version": 2}, {**state, "epoch": -1}, {**state, "rank": 1 << 40}, {**state, "position": "0"}, []):
        if broken is None:
            continue
        with pytest.raises(lade.Error):
            loader.load_state_dict(broken)
    assert next(loader).number == 0


def test_arrays_keep_their_batch(made):
    """A view that is alive keeps its bytes: the memory is not read into again."""
    loader = made(prefetch=3)
    first = next(loader)["img"]
    wanted = first.copy()
    for _ in range(20):
        next(loader)
    gc.collect()
    assert (first == wanted).all()


def test_too_many_batches_in_use(made):
    loader = made(prefetch=2, return_timeout=2)
    held = [next(loader), next(loader)]
    with pytest.raises(lade.TimeoutError):
        next(loader)
    held[0].release()
    assert next(loader).number == 2
    with pytest.raises(lade.InvalidArgumentError, match="released"):
        held[0]["img"]
    assert "released" in repr(held[0])


def test_close(made):
    loader = made()
    state = loader.state_dict()
    loader.close()
    with pytest.raises(lade.InvalidArgumentError, match="closed"):
        next(loader)
    with pytest.raises(lade.InvalidArgumentError, match="closed"):  # regression: it was open again
        loader.load_state_dict(state)
    loader.close()
    with made() as loader:
        next(loader).release()


def test_a_batch_outlives_its_loader(made, device):
    """Regression: the end of the block was refused, since the loop's variable still named the last batch."""
    pipeline = lade.Pipeline(device)
    with made(device=None, pipeline=pipeline) as loader:
        for batch in loader:
            last = np.array(batch["img"])
    with pytest.raises(lade.InvalidArgumentError, match="closed"):
        next(loader)
    assert (np.asarray(batch["img"]) == last).all()
    with pytest.raises(lade.BusyError, match="loader"):
        pipeline.close()  # the batch's memory comes from it
    del batch
    pipeline.close()


def test_pipeline_of_a_loader_cannot_be_closed(made, device):
    pipeline = lade.Pipeline(device)
    loader = made(device=None, pipeline=pipeline)
    with pytest.raises(lade.BusyError, match="loader"):
        pipeline.close()
    with pytest.raises(lade.BusyError, match="loader"):
        loader.index.add_file(__file__)
    loader.close()
    pipeline.close()


def test_dropped_loader_and_its_batch(made):
    loader = made()
    batch = next(loader)
    del loader
    gc.collect()
    assert batch["label"].tolist() == [label_of(record) for record in range(8)]


def test_a_batch_outlives_its_loader_and_stream(made, device):
    """Regression: a batch was not returned on a stream that had gone with its loader, or before it, and all memory stayed for ever."""
    pipeline, allocator = lade.Pipeline(device), lade.DeviceAllocator(device)
    for stream in (None, device.stream()):
        loader = made(device=None, pipeline=pipeline, allocator=allocator, stream=stream)
        batch = next(loader)
        images = batch["label"]
        del loader, batch, stream
        assert images.tolist() == [label_of(record) for record in range(8)]
        del images
        gc.collect()
        assert allocator.usage()["allocated_bytes"] == 0
    pipeline.close()
    allocator.close()


def test_fixed_records_and_dlpack(tmp_path, device):
    path = tmp_path / "rows.bin"
    rows = np.arange(30 * 6, dtype=np.float32).reshape(30, 6)
    path.write_bytes(rows.tobytes())
    loader = lade.Loader([path], 7, record_bytes=24, device=device, layout={"": ("float32", (6,))})
    out = [np.from_dlpack(batch[0]).copy() for batch in loader]
    assert (np.concatenate(out) == rows).all()
    array = next(loader)[0]
    assert array.__dlpack_device__() == (1, 0) and array.shape == (7, 6) and array.dtype == "float32"


def test_records_of_several_sizes(tmp_path, device):
    path = tmp_path / "words.tar"
    words = [b"a" * size for size in (5, 0, 17, 64, 1)]
    with tarfile.open(path, "w") as archive:
        for number, word in enumerate(words):
            member(archive, f"{number}.txt", word)
    ragged = next(lade.Loader(path, 5, fields=["txt"], device=device, convert=np.asarray))
    assert [bytes(part) for part in ragged["txt"]] == words
    padded = next(lade.Loader(path, 5, fields=["txt"], device=device, padded=True, convert=np.asarray))
    assert padded["txt"].shape == (5, 64) and padded.lengths() == [len(word) for word in words]
    assert [bytes(row) for row in padded["txt"]] == [word.ljust(64, b"\0") for word in words]
    with pytest.raises(TypeError):
        len(lade.Loader(path, batch_bytes=1000, fields="txt", device=device))


@pytest.fixture
def mixed(tmp_path, device):
    """A function that makes a loader of records whose images are of one size, and whose classes are not."""
    path = tmp_path / "mixed.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(9):
            member(archive, f"{number}.img", np.full(3, number, "f4").tobytes())
            member(archive, f"{number}.cls", b"c" * (number + 1))

    def make(**options):
        options = {"fields": ["img", "cls"], "device": device, "layout": {"img": ("float32", (3,))}, "convert": np.asarray, **options}
        return lade.Loader(path, 5, **options)

    return make


@pytest.mark.parametrize("options", [{}, {"alignment": 4}, {"alignment": 1}])
def test_layout_of_a_field_beside_one_of_several_sizes(mixed, options):
    """Regression: the layout was dropped, and so were wrong ones."""
    loader = mixed(**options)
    batch = next(loader)
    assert batch["img"].dtype == np.float32 and batch["img"].tolist() == [[number] * 3 for number in range(5)]
    assert [bytes(part) for part in batch["cls"]] == [b"c" * (number + 1) for number in range(5)]
    assert [bytes(part) for part in batch.records("img")] == [np.full(3, number, "f4").tobytes() for number in range(5)]
    state = loader.state_dict()
    assert next(loader)["img"].shape == (4, 3)
    loader.load_state_dict(state)
    assert next(loader)["img"].tolist() == [[number] * 3 for number in range(5, 9)]
    assert isinstance(next(mixed(layout=None))["img"], list)


def test_alignment_leaves_no_gaps_in_arrays_of_a_layout(tmp_path, device):
    for size, alignment in ((12, 4), (7, 1), (64, 64), (192, 64), (96, 32), (0, 64)):
        index = lade.RecordIndex("a,b")
        (tmp_path / "file").write_bytes(bytes(1000))
        file = index.add_file(tmp_path / "file")
        for number in range(3):
            index.add([(file, 0, size), (file, 0, number + 1)])
        batch = next(lade.Loader(index, 3, device=device, layout={"a": ("uint8", (size,))}))
        assert batch["a"].shape == (3, size)
        assert [part.ptr - batch["b"][0].ptr for part in batch["b"]] == [0, alignment, 3 if alignment == 1 else 2 * alignment]


@pytest.mark.parametrize("options, text", [
    ({"layout": {"cls": ("uint8", (1,))}}, r"layout\['cls'\] is of records of 1 to 9 bytes; expected a field of records of one size"),
    ({"layout": {"img": ("float32", (4,))}}, r"layout\['img'\] has shape \(4,\) of float32, which is not the 12 bytes"),
    ({"layout": {"img": ("float64", None)}}, r"layout\['img'\] has dtype float64; records of 12 bytes hold no whole number"),
    ({"layout": {"img": ("nose", (3,))}}, "dtype is 'nose'"),
    ({"alignment": 64}, r"layout\['img'\] has shape \(3,\) of float32, which is not the 64 bytes that a record takes"),
    ({"padded": True, "layout": {"cls": ("uint8", (8,))}}, r"layout\['cls'\] has shape \(8,\) of uint8, which is not the 9 bytes"),
])
def test_wrong_layouts_are_refused(mixed, options, text):
    with pytest.raises(lade.InvalidArgumentError, match=text):
        mixed(**options)


def test_layout_of_padded_records(mixed):
    batch = next(mixed(padded=True, layout={"cls": ("uint8", (3, 3)), "img": ("float32", None)}))
    assert batch["cls"].shape == (5, 3, 3) and batch["img"].shape == (5, 3) and batch["img"].dtype == np.float32


def test_members_that_are_left_out_are_counted(tmp_path):
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        for name in ("a.jpg", "b.v2.jpg", "in/__x__/c.jpg", "in/__x__/c.txt", "d.json"):
            member(archive, name, b"1")
        pipe = tarfile.TarInfo("e.jpg")
        pipe.type = tarfile.FIFOTYPE
        archive.addfile(pipe)
    index = lade.RecordIndex("jpg")
    assert index.left_out() == {"dotted": 0, "private_folders": 0, "other_types": 0}
    index.add_tar(tmp_path / "odd.tar")
    assert len(index) == 1 and index.left_out() == {"dotted": 1, "private_folders": 1, "other_types": 1}


def test_nothing_readable_in_endless_epochs(tmp_path, device):
    """Regression: the loop never ended, and no signal was seen meanwhile."""
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(4000))
    loader = lade.Loader(path, 4, record_bytes=100, device=device, skip_unreadable=True)
    os.truncate(path, 0)
    with pytest.raises((lade.TruncatedError, lade.TimeoutError), match="rows.bin"):
        while True:
            next(loader)


def test_index_by_hand(tmp_path, device):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(200)))
    index = lade.RecordIndex("left,right")
    file = index.add_file(path)
    index.add([(file, 10, 3), (file, 100, 4)], key="one")
    index.add([(file, 0, 3), (file, 50, 4)])
    assert len(index) == 2 and index.fields == ("left", "right")
    assert index.key(0) == "one" and index.key(1) is None and index.range(1, 1) == (file, 50, 4)
    batch = next(lade.Loader(index, 2, device=device, convert=np.asarray))
    assert batch["right"].tolist() == [[100, 101, 102, 103], [50, 51, 52, 53]] and batch.keys() == ["one", None]


def test_unreadable_records(tmp_path, device):
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(range(100)))
    index = lade.RecordIndex()
    index.add_fixed(path, 10)
    os.truncate(path, 95)
    with pytest.raises(lade.TruncatedError, match="rows.bin"):
        next(lade.Loader(index, 10, device=device))
    loader = lade.Loader(index, 10, device=device, skip_unreadable=True)
    assert len(next(loader)) == 9
    assert loader.stats()["skipped_records"] >= 1
    (number, key, times, text), = loader.skips()
    assert (number, key) == (9, None) and times >= 1 and "rows.bin" in text


def test_threads_share_a_loader(made):
    loader, seen, lock = made(shuffle=True, epochs=3), [], threading.Lock()

    def work():
        for batch in iter(lambda: next(loader, None), None):
            with lock:
                seen.extend(batch["label"].tolist())
            del batch

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted([label_of(record) for record in range(COUNT)] * 3)


@pytest.mark.parametrize("options, text", [
    ({"batch_size": 0}, "batch_size is 0"), ({"batch_size": None}, "batch_size is None"), ({"rank": 2, "world": 2}, "rank is 2"),
    ({"epochs": 0}, "epochs is 0"), ({"prefetch": 65}, "prefetch is 65"), ({"prefetch": 0}, "prefetch is 0"),
    ({"fields": None}, "fields is None"), ({"layout": {"nose": ("uint8", ())}}, "nose"), ({"alignment": 3}, "alignment"),
    ({"seed": -1}, "seed is -1"), ({"seed": 1 << 64}, "seed is "), ({"alignment": -1}, "alignment is -1"),
    ({"world": 1.5}, "world is a float"), ({"batch_size": "8"}, "batch_size is a str"),
])
def test_arguments_are_refused_by_name(made, options, text):
    with pytest.raises(lade.InvalidArgumentError, match=text):
        made(**options)


def test_another_device_than_the_pipeline_s_is_refused(made, device):
    """Regression: it was dropped, and batches were on the pipeline's."""
    pipeline = lade.Pipeline(device)
    with pytest.raises(lade.InvalidArgumentError, match="device is .*; expected None, or cpu:0, with a pipeline of that"):
        made(device=lade.software_device(), pipeline=pipeline)
    assert next(made(device=device, pipeline=pipeline)).number == 0


@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_a_refused_timeout_leaves_no_loader(tar, device, timeout):
    """It was refused when the loader was there, which then stood on index and pipeline for ever."""
    pipeline, index = lade.Pipeline(device), lade.RecordIndex("img,label")
    index.add_tar(tar)
    with pytest.raises(lade.InvalidArgumentError, match="timeout is"):
        lade.Loader(index, 8, pipeline=pipeline, return_timeout=timeout)
    index.add_tar(tar)
    pipeline.close()


def test_an_index_that_changes_while_a_loader_begins_is_refused(tmp_path, device):
    """By what runs when a stream is asked for its handle. The loader had the sizes of the records from before."""
    (tmp_path / "records").write_bytes(bytes(range(64)))
    index = lade.RecordIndex()
    number = index.add_file(tmp_path / "records")
    index.add([(number, 0, 4)])
    refused = []

    class Stream:
        def __cuda_stream__(self):
            try:
                index.add([(number, 8, 8)])
            except lade.BusyError as error:
                refused.append(str(error))
            return 0, 0

    loader = lade.Loader(index, 2, device=device, stream=Stream(), convert=np.asarray)
    batch = next(loader)
    assert batch[0].shape == (len(index), 4) and len(index) == 1 and refused


def test_an_index_is_asked_while_another_thread_adds_to_it(tmp_path):
    """Its tables move then: it is refused, where memory that was gone was read, or the answer is right."""
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for record in range(500):
            member(archive, f"{record:05}.img", b"abcd")
    index = lade.RecordIndex("img")
    index.add_tar(tmp_path / "set.tar")
    first, answers = (index.key(0), index.range(0)), set()
    thread = threading.Thread(target=lambda: [index.add_tar(tmp_path / "set.tar") for _ in range(100)])
    thread.start()
    while thread.is_alive():
        for ask in (lambda: (index.key(0), index.range(0)), lambda: len(index) % 500, lambda: repr(index).startswith("<lade.RecordIndex")):
            try:
                answers.add(ask())
            except lade.BusyError as error:
                answers.add(str(error))
    thread.join()
    assert answers <= {first, 0, True, "the RecordIndex is being added to by another thread"} and len(index) == 50500


@pytest.mark.parametrize("value", [-1, 1 << 64, "x", 1.5, None, True])
def test_ranges_of_other_things_than_numbers_are_refused_by_name(tmp_path, value):
    (tmp_path / "records").write_bytes(bytes(64))
    index = lade.RecordIndex()
    number = index.add_file(tmp_path / "records")
    for range_ in ((value, 0, 4), (number, value, 4), (number, 0, value)):
        with pytest.raises(lade.InvalidArgumentError, match="ranges has .*; expected"):
            index.add([range_])
    index.add([np.array([number, 0, 4])])
    assert len(index) == 1


@pytest.mark.parametrize("shape", [("x",), (None,), (1 << 70,), (-1, -16), (4.0, 4)])
def test_shapes_of_other_things_than_numbers_are_refused_by_name(tmp_path, device, shape):
    (tmp_path / "records").write_bytes(bytes(64))
    with pytest.raises(lade.InvalidArgumentError, match="shape .* is not the 16 bytes that a record takes"):
        lade.Loader(tmp_path / "records", 2, record_bytes=16, device=device, layout={"": ("uint8", shape)})


def test_a_loader_that_cannot_begin_has_the_driver_s_code(tmp_path):
    device = lade.software_device(clock="cpu", memory_bytes=1 << 20)
    (tmp_path / "records").write_bytes(bytes(1 << 20))
    with pytest.raises(lade.OutOfDeviceMemoryError) as own:
        lade.DeviceAllocator(device).alloc(1 << 22)
    with pytest.raises(lade.OutOfDeviceMemoryError) as error:
        lade.Loader(tmp_path / "records", 1, record_bytes=1 << 20, device=device)
    assert error.value.native_code == own.value.native_code != 0


def test_fields_are_refused_by_name(made):
    batch = next(made())
    with pytest.raises(KeyError, match="nose"):
        batch["nose"]
    with pytest.raises(IndexError):
        batch[2]
    assert (batch[-1] == batch["label"]).all()


def test_files_that_are_none(tmp_path, device):
    with pytest.raises(lade.IOError):
        lade.Loader(tmp_path / "missing.tar", 1, fields="a", device=device)
    (tmp_path / "short.tar").write_bytes(b"x" * 100)
    with pytest.raises(lade.FormatError):
        lade.Loader(tmp_path / "short.tar", 1, fields="a", device=device)
    (tmp_path / "odd.bin").write_bytes(b"x" * 100)
    with pytest.raises(lade.FormatError):
        lade.Loader(tmp_path / "odd.bin", 1, record_bytes=33, device=device)


def test_other_processes_are_refused(made):
    loader = made()
    with pytest.raises(TypeError, match="num_workers=0"):
        pickle.dumps(loader)
    with pytest.raises(TypeError, match="dataset"):
        loader[0]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(loader)
        except lade.ForkedError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert b"fork" in os.read(reader, 1000)
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0
    assert next(loader).number == 0


def test_dataset_of_torch(made):
    data = pytest.importorskip("torch.utils.data")
    dataset = made(epochs=2).dataset()
    assert isinstance(dataset, data.IterableDataset) and len(dataset) == 7
    loader = data.DataLoader(dataset, batch_size=None)
    assert len(loader) == 7 and [batch.number for batch in loader] == list(range(7))
    with pytest.raises(RuntimeError, match="num_workers=0"):
        list(data.DataLoader(dataset, batch_size=None, num_workers=1))
    assert [batch.epoch for batch in dataset] == [1] * 7 and [batch.epoch for batch in dataset] == [0] * 7


def test_virtual_clock(made, sim):
    loader = made(device=sim, shuffle=True)
    assert sorted(labels(loader)) == [label_of(record) for record in range(COUNT)]
    assert sim.soft_report()["unordered_reuse"] == 0
