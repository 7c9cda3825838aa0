# SPDX-License-Identifier: Apache-2.0
"""Pipelines, checkpoints and loaders with PyTorch on a GPU."""

import asyncio
import gc
import io
import os
import tarfile
import threading

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import lade
import lade.safetensors as checkpoints

MIB = 1 << 20
SIZE = 37 * MIB + 5
SLEEP_CYCLES = 400_000_000  # some tenths of a second


@pytest.fixture
def pipeline():
    with lade.Pipeline("cuda:0") as pipeline:
        yield pipeline


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


def bytes_of(tensor):
    return tensor.cpu().numpy().tobytes()


# ---- Pipelines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
def test_file_to_tensor_and_back(pipeline, source, tmp_path, direct):
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    pipeline.read_into(source, 0, tensor, direct=direct).wait()
    assert bytes_of(tensor) == source.read_bytes()
    pipeline.write_from(tmp_path / "out", 0, tensor, direct=direct, atomic=True).wait()
    assert (tmp_path / "out").read_bytes() == source.read_bytes()


def test_copies(pipeline, source):
    host = torch.frombuffer(bytearray(source.read_bytes()), dtype=torch.uint8)
    for start in (host, host.pin_memory()):
        tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
        pipeline.copy(tensor, start).wait()
        other = torch.zeros_like(tensor)
        pipeline.copy(other, tensor).wait()
        back = torch.zeros(SIZE, dtype=torch.uint8)
        pipeline.copy(back, other).wait()
        assert back.equal(host)


def test_the_copy_comes_after_the_work_on_the_tensor_s_stream(pipeline, source):
    """torch gives memory out in the order of a stream: work queued before must not write over the bytes."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(SLEEP_CYCLES)
        tensor.zero_()
        ticket = pipeline.read_into(source, 0, tensor)
    ticket.wait()
    assert bytes_of(tensor) == source.read_bytes()


def test_a_stream_waits_for_a_ticket(pipeline, source):
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    ticket = pipeline.read_into(source, 0, tensor)
    ticket.wait_on(stream)
    with torch.cuda.stream(stream):
        out = tensor.clone()
    stream.synchronize()
    assert bytes_of(out) == source.read_bytes()
    ticket.wait()


def test_tensor_dropped_while_copied(pipeline, source):
    stream = torch.cuda.Stream()
    box = [torch.empty(SIZE, dtype=torch.uint8, device="cuda")]
    address = box[0].data_ptr()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
    ticket = pipeline.read_into(source, 0, box[0], stream=stream)
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert torch.empty(SIZE, dtype=torch.uint8, device="cuda").data_ptr() != address
    assert bytes_of(ticket.result()) == source.read_bytes()


def test_await(pipeline, source):
    async def main():
        tensors = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
        await asyncio.gather(*(pipeline.read_into(source, at, tensor) for at, tensor in enumerate(tensors)))
        whole = source.read_bytes()
        assert all(bytes_of(tensor) == whole[at:at + MIB] for at, tensor in enumerate(tensors))

    asyncio.run(main())


def test_refusals(pipeline, source):
    square = torch.empty(64, 64, device="cuda")
    for tensor, text in ((torch.empty(10), "host memory"), (square.t(), "contiguous"), (b"123", "read-only")):
        with pytest.raises(lade.InvalidArgumentError, match=text):
            pipeline.read_into(source, 0, tensor)
    with pytest.raises(lade.InvalidArgumentError, match="GPU"):
        lade.Pipeline(lade.software_device()).read_into(source, 0, square)
    if torch.cuda.device_count() > 1:
        with pytest.raises(lade.InvalidArgumentError, match="device 1"):
            pipeline.read_into(source, 0, torch.empty(10, device="cuda:1"))
        with pytest.raises(lade.InvalidArgumentError, match="stream"):
            pipeline.read_into(source, 0, square, stream=torch.cuda.Stream(1))


def test_the_current_device_stays(pipeline, source):
    last = torch.cuda.device_count() - 1
    torch.cuda.set_device(last)
    try:
        pipeline.read_into(source, 0, torch.empty(MIB, dtype=torch.uint8, device="cuda:0")).wait()
        assert torch.cuda.current_device() == last
    finally:
        torch.cuda.set_device(0)


# ---- Checkpoints -----------------------------------------------------------------------------------------------------

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]


def tensors_make(device):
    torch.manual_seed(1)
    tensors = {f"t{number}": (torch.randn(257, 129) * 3).to(kind).to(device) for number, kind in enumerate(KINDS)}
    return {**tensors, "none": torch.empty(0, 3, device=device), "one": torch.tensor(7.5, device=device)}


def same(left, right):
    return left.shape == right.shape and left.dtype == right.dtype and bytes_of(left.reshape(-1).view(torch.uint8)) == bytes_of(
        right.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_checkpoint_round_trip(tmp_path, direct, per_tensor):
    tensors = tensors_make("cuda")
    checkpoints.save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    loaded = checkpoints.load_file(tmp_path / "m.safetensors", direct=direct, per_tensor=per_tensor)
    assert loaded.keys() == tensors.keys()
    for name, tensor in loaded.items():
        assert tensor.device == torch.device("cuda:0") and same(tensor, tensors[name])
    loaded["t0"].add_(1)


def test_checkpoint_beside_the_package(tmp_path):
    package = pytest.importorskip("safetensors.torch")
    tensors = tensors_make("cuda")
    checkpoints.save_file(tensors, tmp_path / "ours", metadata={"format": "pt"})
    package.save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    theirs, ours = package.load_file(tmp_path / "ours", device="cuda:0"), checkpoints.load_file(tmp_path / "theirs")
    assert all(same(theirs[name], ours[name]) for name in tensors)


def test_mixed_tensors_are_saved(tmp_path):
    tensors = {"gpu": torch.arange(1000, device="cuda"), "host": torch.arange(1000) + 1}
    checkpoints.save_file(tensors, tmp_path / "m")
    loaded = checkpoints.load_file(tmp_path / "m")
    assert loaded["gpu"].equal(tensors["gpu"]) and loaded["host"].cpu().equal(tensors["host"])


def test_saving_comes_after_queued_work(tmp_path):
    tensor = torch.zeros(MIB, device="cuda")
    torch.cuda._sleep(SLEEP_CYCLES)
    tensor.fill_(5)
    checkpoints.save_file({"a": tensor}, tmp_path / "m")
    assert checkpoints.load_file(tmp_path / "m", device="cpu")["a"].eq(5).all()


def test_slices(tmp_path):
    tensor = torch.randn(300, 40, 8, device="cuda")
    checkpoints.save_file({"a": tensor}, tmp_path / "m")
    with checkpoints.safe_open(tmp_path / "m", "pt", device="cuda:0") as file:
        part = file.get_slice("a")
        for index in ((slice(3, 90),), (slice(None), 7), (5, slice(2, 30, 3), slice(1, 4)), (slice(None), slice(None), 3), (..., -1)):
            assert part[index].equal(tensor[index]) and part[index].device.type == "cuda"
        assert file.get_tensor("a").equal(tensor)


def test_memory_of_a_checkpoint_goes_back(tmp_path):
    checkpoints.save_file({"a": torch.ones(MIB, device="cuda"), "b": torch.zeros(MIB, device="cuda")}, tmp_path / "m")
    allocator = lade.DeviceAllocator("cuda:0")
    with lade.Pipeline("cuda:0") as pipeline:
        loaded = checkpoints.load_file(tmp_path / "m", pipeline=pipeline, allocator=allocator)
        assert allocator.usage()["allocated_bytes"] >= 8 * MIB
        last = loaded["b"][5:10]
        del loaded
        gc.collect()
        assert allocator.usage()["allocated_bytes"] > 0 and last.eq(0).all()
        del last
        gc.collect()
        assert allocator.usage()["allocated_bytes"] == 0
    allocator.close()


def test_checkpoint_without_torch_s_help(tmp_path):
    cupy = pytest.importorskip("cupy")
    tensor = torch.arange(5000, device="cuda", dtype=torch.float32)
    checkpoints.save_file({"a": tensor}, tmp_path / "m")
    array = checkpoints.load_file(tmp_path / "m", framework="cupy")["a"]
    assert isinstance(array, cupy.ndarray) and float(array.sum()) == float(tensor.sum())
    checkpoints.save_file({"a": array}, tmp_path / "n")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "n").read_bytes()


# ---- Loaders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tar(tmp_path):
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        for record in range(500):
            for ending, data in (("img", bytes([record % 251]) * 3072), ("label", record.to_bytes(8, "little"))):
                info = tarfile.TarInfo(f"{record:05}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("other_stream", [False, True])
def test_batches(tar, other_stream):
    """Slow work on a stream keeps each batch: its memory is not read into before."""
    loader = lade.Loader(tar, 32, fields="img,label", device="cuda:0", shuffle=True, convert=torch.from_dlpack, prefetch=3,
                         layout={"img": ("uint8", (3, 32, 32)), "label": ("int64", ())})
    stream = torch.cuda.Stream() if other_stream else torch.cuda.current_stream()
    sums = []
    for _ in range(2):
        labels = []
        with torch.cuda.stream(stream):
            for batch in loader:
                images, label = batch["img"], batch["label"]
                torch.cuda._sleep(SLEEP_CYCLES // 50)
                sums.append((images.to(torch.int64).sum((1, 2, 3)) - label % 251 * 3072).abs().sum())
                labels.append(label.clone())
        stream.synchronize()
        assert sorted(torch.cat(labels).tolist()) == list(range(500))
    assert all(int(value) == 0 for value in sums)


def test_dataset_in_a_dataloader(tar):
    loader = lade.Loader(tar, 50, fields="img,label", device="cuda:0", convert=torch.from_dlpack)
    assert len(loader.dataset()) == 10
    seen = [batch["label"].view(torch.int64).reshape(-1).clone() for batch in torch.utils.data.DataLoader(loader.dataset(), batch_size=None)]
    assert torch.cat(seen).tolist() == list(range(500))
    with pytest.raises(RuntimeError, match="num_workers=0"):
        list(torch.utils.data.DataLoader(loader.dataset(), batch_size=None, num_workers=1))


def test_state_goes_on(tar):
    def make(state=None):
        return lade.Loader(tar, 64, fields="label", device="cuda:0", shuffle=True, convert=torch.from_dlpack, state=state,
                           layout={"label": ("int64", ())})

    loader = make()
    for _ in range(3):
        next(loader)
    state = loader.state_dict()
    assert make(state).__next__()["label"].tolist() == next(loader)["label"].tolist()
