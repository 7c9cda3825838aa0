# SPDX-License-Identifier: Apache-2.0
"""URLs where paths are taken. The server (tests/sources/servers.py) verifies signatures; boto3 judges it, and the bytes."""

import errno
import io
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tarfile

import boto3
import boto3.s3.transfer
import botocore.config
import numpy as np
import pytest

import lade
import lade.safetensors

writer = pytest.importorskip("safetensors.numpy")  # a free-threaded Python has none

SERVERS = pathlib.Path(__file__).parents[1] / "sources" / "servers.py"
DATA = bytes(range(251)) * 4000


@pytest.fixture
def server(tmp_path):
    """The URL of a server of ours, which has DATA as "a", and in its bucket as "dir/a b=c"."""
    (tmp_path / "a").write_bytes(DATA)
    (tmp_path / "dir|a b=c").write_bytes(DATA)
    with subprocess.Popen([sys.executable, SERVERS, "faults", tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


@pytest.fixture
def keys(server, monkeypatch):
    for name, value in {"AWS_ENDPOINT_URL_S3": f"{server}/signed", "AWS_REGION": "eu-test-1", "AWS_DEFAULT_REGION": "eu-test-1",
                        "AWS_ACCESS_KEY_ID": "AKTEST", "AWS_SECRET_ACCESS_KEY": "secret/of+test"}.items():
        monkeypatch.setenv(name, value)
    lade.safetensors.release()  # kept pipelines may have read other ones


class Stage:
    """A pipeline with short chunks, and memory of its device."""

    def __init__(self, device):
        self.allocator = lade.DeviceAllocator(device)
        self.pipeline = lade.Pipeline(device, chunk_bytes=1 << 16)

    def empty(self, count):
        return self.allocator.empty(count, "uint8")

    def bytes_of(self, buffer):
        out = np.empty(buffer.nbytes, np.uint8)
        self.pipeline.copy(out, buffer).wait()
        return out.tobytes()


@pytest.fixture
def stage(device):
    return Stage(device)


def test_ranges_of_objects(server, stage):
    whole, first, second = stage.empty(len(DATA)), stage.empty(1000), stage.empty(5000)
    assert stage.pipeline.read_into(f"{server}/a", 0, whole).result() is whole
    assert stage.bytes_of(whole) == DATA
    stage.pipeline.read_many([(f"{server}/a", 10, first), (f"{server}/a?x", 7000, second)]).wait()
    assert stage.bytes_of(first) == DATA[10:1010] and stage.bytes_of(second) == DATA[7000:12000]
    assert stage.pipeline.stats()["bytes_by_url"] == len(DATA) + 6000


def test_object_of_a_bucket_as_boto3_reads_it(keys, stage):
    bucket = boto3.client("s3", config=botocore.config.Config(retries={"max_attempts": 1}))
    expected = bucket.get_object(Bucket="bucket", Key="dir/a b=c", Range="bytes=100-300099")["Body"].read()
    assert expected == DATA[100:300100]
    got = stage.empty(300000)
    stage.pipeline.read_into("s3://bucket/dir/a b=c", 100, got).wait()
    assert stage.bytes_of(got) == expected


def test_errors(server, stage):
    one = stage.empty(1)
    with pytest.raises(lade.IOError, match="/none, bytes 0 to 0, attempt 1 of 10: HTTP 404 NoSuchKey") as caught:
        stage.pipeline.read_into(f"{server}/none?secret=1", 0, one).wait()
    assert caught.value.native_code == errno.ENOENT and "secret" not in str(caught.value)
    with pytest.raises(lade.TruncatedError):
        stage.pipeline.read_into(f"{server}/a", len(DATA), one).wait()
    with pytest.raises(lade.InvalidArgumentError, match="wrong at byte 7 of a URL; expected a host"):
        stage.pipeline.read_into("http://", 0, one)
    with pytest.raises(lade.InvalidArgumentError, match="host.flags"):
        stage.pipeline.read_into(f"{server}/a", 0, one, direct=True)
    with pytest.raises(lade.UnsupportedError, match="URLs are sources alone"):
        stage.pipeline.write_from(f"{server}/a", 0, one)


TENSORS = {"rows": np.arange(300 * 70, dtype=np.float32).reshape(300, 70), "ids": np.arange(1000, dtype=np.int64),
           "none": np.zeros((0, 3), np.float16)}


@pytest.fixture
def model(server, tmp_path):
    """The URL of a checkpoint that the safetensors package has written."""
    writer.save_file(TENSORS, tmp_path / "model.safetensors")
    return f"{server}/model.safetensors?secret=1"


def expect(found, names=TENSORS):
    assert set(found) == set(names)
    for name in names:
        np.testing.assert_array_equal(found[name], TENSORS[name])


def test_checkpoints(model, tmp_path):
    expect(lade.safetensors.load_file(model, "cpu", framework="np"))
    expect(lade.safetensors.load_file(model.encode(), "cpu", framework="np", tensors=["ids"]), ["ids"])
    expect(dict(lade.safetensors.iterate(model, "cpu", framework="np")))
    with lade.safetensors.safe_open(model, "np") as file:
        assert file.metadata() is None
        np.testing.assert_array_equal(file.get_slice("rows")[5:7, 3:60], TENSORS["rows"][5:7, 3:60])


def test_checkpoint_of_a_bucket(keys, tmp_path):
    writer.save_file(TENSORS, tmp_path / "dir|model.safetensors")
    expect(lade.safetensors.load_file("s3://bucket/dir/model.safetensors", "cpu", framework="np"))


def test_into_memory(model, stage):
    into = {name: stage.allocator.empty(array.shape, str(array.dtype)) for name, array in TENSORS.items()}
    lade.safetensors.load_into(into, model, pipeline=stage.pipeline)
    assert stage.bytes_of(into["rows"]) == TENSORS["rows"].tobytes()
    into["more"] = stage.empty(1)
    with pytest.raises(RuntimeError, match="model.safetensors does not fit: missing .*more") as caught:
        lade.safetensors.load_into(into, model, pipeline=stage.pipeline)
    assert "secret" not in str(caught.value)


def test_data_sets(server, tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for number in range(50):
            for field in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{number:03}.{field}")
                member.size = number * 7
                shard.addfile(member, io.BytesIO(DATA[number : number * 8]))
    loader = lade.Loader(f"{server}/{{0..0}}.tar?secret=1", 50, fields="jpg,cls", device=lade.software_device(), convert=np.asarray)
    batch = next(loader)
    for number in range(50):
        assert batch["jpg"][number].tobytes() == batch["cls"][number].tobytes() == DATA[number : number * 8]
    index = lade.RecordIndex("jpg;jpeg,cls")
    index.add_tar(f"{server}/0.tar")
    index.save(tmp_path / "kept")
    kept = lade.RecordIndex.open(tmp_path / "kept")
    assert kept.fields == ("jpg", "cls") and len(kept) == 50 and kept.range(49, 1) == index.range(49, 1)
    again = lade.Loader(kept, 50, device=lade.software_device(), convert=np.asarray)
    assert next(again)["cls"][7].tobytes() == DATA[7:56]
    with pytest.raises(lade.BusyError, match="loaders and saves read it"):
        kept.add_file(tmp_path / "kept")
    kept.save(tmp_path / "kept")  # while it is read
    with pytest.raises(lade.FormatError, match="it is no index of version 1"):
        lade.RecordIndex.open(tmp_path / "0.tar")
    index.add_tar(f"{server}/0.tar?secret=1")
    with pytest.raises(lade.UnsupportedError, match="has a query"):
        index.save(tmp_path / "kept")
    with pytest.raises(lade.IOError, match="/1.tar, bytes 0 to 65535, attempt 1 of 10: HTTP 404") as caught:
        lade.RecordIndex("jpg").add_tar(f"{server}/1.tar?secret=1")
    assert "secret" not in str(caught.value)


def test_checkpoints_that_are_not_there(server, model, tmp_path):
    with pytest.raises(FileNotFoundError, match="/none.safetensors, bytes 0 to 65535, attempt 1 of 10: HTTP 404") as caught:
        lade.safetensors.load_file(f"{server}/none.safetensors?secret=1", "cpu", framework="np")
    assert "secret" not in str(caught.value)
    (tmp_path / "noise.safetensors").write_bytes(DATA[:1000])
    with pytest.raises(lade.safetensors.SafetensorError) as caught:
        lade.safetensors.load_file(f"{server}/noise.safetensors?secret=1", "cpu", framework="np")
    assert "/noise.safetensors" in str(caught.value) and "secret" not in str(caught.value)
    with pytest.raises(lade.IOError, match="it was replaced while it was read") as caught:
        lade.safetensors.load_file(f"{model}&fault=replaced&after=1", "cpu", framework="np")
    assert caught.value.native_code == errno.ESTALE and "secret" not in str(caught.value)
    with pytest.raises(lade.UnsupportedError, match="checkpoints are saved to files and to s3:// URLs") as caught:
        lade.safetensors.save_file(TENSORS, model)
    assert "secret" not in str(caught.value)


def test_a_server_that_says_nothing_is_left_by_ctrl_c():
    """An exception of a signal's handler, before the limits of the request."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/model.safetensors"
        program = ("import lade.safetensors, os, signal, sys, threading; threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start();"
                   "lade.safetensors.load_file(sys.argv[1], device='cpu')")
        ended = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == -signal.SIGINT and "KeyboardInterrupt" in ended.stderr, ended.stderr


@pytest.fixture(scope="module")
def swift_url(tmp_path_factory):
    """An OpenStack Swift, for all tests here: it takes ten seconds to start."""
    folder = tmp_path_factory.mktemp("swift")
    with subprocess.Popen([sys.executable, SERVERS, "swift", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = process.stdout.readline()
        yield f"http://127.0.0.1:{int(port)}" if port else None
        process.stdin.close()
        process.wait()


@pytest.fixture
def swift(swift_url, monkeypatch):
    """A client of boto3's for it, with an empty bucket; its settings are the environment's."""
    if swift_url is None:
        pytest.skip("OpenStack Swift is not installed")
    for name, value in {"AWS_ENDPOINT_URL_S3": swift_url, "AWS_REGION": "us-east-1",
                        "AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing"}.items():
        monkeypatch.setenv(name, value)
    lade.safetensors.release()
    client = boto3.session.Session().client("s3", region_name="us-east-1", config=botocore.config.Config(
        s3={"addressing_style": "path"}, request_checksum_calculation="when_required", retries={"max_attempts": 1}))
    if not client.list_buckets()["Buckets"]:
        client.create_bucket(Bucket="bucket")
    for found in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=found["Key"])
    return client


def test_an_object_store_that_lade_did_not_write(swift, stage, tmp_path, monkeypatch):
    writer.save_file(TENSORS, tmp_path / "model")
    whole = DATA * 11
    swift.upload_file(str(tmp_path / "model"), "bucket", "a b/c=d/model.safetensors")
    parts = boto3.s3.transfer.TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    swift.upload_fileobj(io.BytesIO(whole), "bucket", "parts", Config=parts)
    assert "-" in swift.head_object(Bucket="bucket", Key="parts")["ETag"]
    expect(lade.safetensors.load_file("s3://bucket/a b/c=d/model.safetensors", "cpu", framework="np"))
    got = stage.empty(len(whole) - 77)
    stage.pipeline.read_into("s3://bucket/parts", 77, got).wait()
    assert stage.bytes_of(got) == whole[77:]
    with lade.safetensors.safe_open("s3://bucket/a b/c=d/model.safetensors", "np", "cpu", pipeline=stage.pipeline) as file:
        np.testing.assert_array_equal(file.get_tensor("ids"), TENSORS["ids"])
        swift.put_object(Bucket="bucket", Key="a b/c=d/model.safetensors", Body=(tmp_path / "model").read_bytes()[::-1])
        with pytest.raises(lade.IOError, match="it was replaced while it was read") as caught:
            file.get_tensor("rows")
        assert caught.value.native_code == errno.ESTALE
    with pytest.raises(FileNotFoundError, match="s3://bucket/none, bytes 0 to 65535, attempt 1 of 10: HTTP 404 NoSuchKey"):
        lade.safetensors.load_file("s3://bucket/none", "cpu")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with pytest.raises(lade.IOError, match="HTTP 403 SignatureDoesNotMatch") as caught:
        lade.safetensors.load_file("s3://bucket/parts", "cpu")
    assert "hush" not in str(caught.value)


LARGE = {**TENSORS, "large": np.arange(5 << 20, dtype=np.int32), "more": np.arange(9 << 20, dtype=np.uint8)}  # four parts of 8 MiB


def uploads_of(client):
    return client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])


def bytes_of(client, key):
    return client.get_object(Bucket="bucket", Key=key)["Body"].read()


def on_device(stage, tensors):
    buffers = {name: stage.allocator.empty(array.shape, str(array.dtype)) for name, array in tensors.items()}
    for name, array in tensors.items():
        stage.pipeline.copy(buffers[name], array).wait()
    return buffers


def test_saves_to_an_object_store(swift, stage):
    """boto3 and the safetensors package have the last word on what is there."""
    expected = writer.save(LARGE)
    lade.safetensors.save_file(LARGE, "s3://bucket/a b/c=d/model.safetensors")
    assert bytes_of(swift, "a b/c=d/model.safetensors") == expected
    assert swift.head_object(Bucket="bucket", Key="a b/c=d/model.safetensors")["ETag"].endswith('-4"')
    half = {**LARGE, **on_device(stage, {"large": LARGE["large"], "ids": LARGE["ids"]})}
    saving = lade.safetensors.save_file(half, "s3://bucket/later", wait=False, pipeline=stage.pipeline)
    saving.wait_staged()
    saving.close()
    assert bytes_of(swift, "later") == expected
    told = []
    lade.safetensors.save_file(TENSORS, "s3://bucket/small", progress=lambda done, all_bytes: told.append((done, all_bytes)))
    assert bytes_of(swift, "small") == writer.save(TENSORS) and told[-1] <= (85000 + 8000, sum(a.nbytes for a in TENSORS.values()))
    assert "-" not in swift.head_object(Bucket="bucket", Key="small")["ETag"]  # one request
    lade.safetensors.save_file(LARGE, "s3://bucket/parts/m.safetensors", {"format": "np"}, max_shard_bytes=12 << 20)
    index = json.loads(bytes_of(swift, "parts/m.safetensors.index.json"))
    found = {}
    for file in set(index["weight_map"].values()):
        found.update(writer.load(bytes_of(swift, f"parts/{file}")))
    assert set(found) == set(LARGE) == set(index["weight_map"])
    for name, array in LARGE.items():
        np.testing.assert_array_equal(found[name], array)
    again = lade.safetensors.load_file("s3://bucket/parts/m.safetensors.index.json", "cpu", framework="np")
    np.testing.assert_array_equal(again["more"], LARGE["more"])
    assert not uploads_of(swift)


def test_saves_that_fail_leave_nothing_in_an_object_store(swift, monkeypatch):
    def stop(done, _):
        if done > 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lade.safetensors.save_file({**LARGE, "much": np.zeros(40 << 20, np.uint8)}, "s3://bucket/m", progress=stop)
    saving = lade.safetensors.save_file(LARGE, "s3://bucket/m", wait=False)
    saving.close(cancel=True)
    with pytest.raises(lade.safetensors.SafetensorError, match="s3://none/m, the begin, attempt 1 of 10: HTTP 404 NoSuchBucket"):
        lade.safetensors.save_file(LARGE, "s3://none/m")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with pytest.raises(lade.safetensors.SafetensorError, match="s3://bucket/small, all of it, attempt 1 of 10: HTTP 403 SignatureDoesNotMatch") as caught:
        lade.safetensors.save_file(TENSORS, "s3://bucket/small")
    assert "hush" not in str(caught.value)
    assert not uploads_of(swift) and "Contents" not in swift.list_objects_v2(Bucket="bucket")


STOPPED = """
import os, signal, sys
import numpy as np
import lade.safetensors
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))

def tell(done, _):
    if done > 0:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))

lade.safetensors.save_file({"x": np.zeros(64 << 20, np.uint8)}, "s3://bucket/stopped", progress=tell)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_program_that_is_told_to_stop_leaves_nothing(swift, name):
    ended = subprocess.run([sys.executable, "-c", STOPPED, name], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == (3 if name == "SIGTERM" else -signal.SIGINT), ended.stderr
    assert not uploads_of(swift) and "Contents" not in swift.list_objects_v2(Bucket="bucket")


def test_uploads_of_a_killed_program_are_listed(swift):
    """As docs/sources.md says."""
    ended = subprocess.run([sys.executable, "-c", STOPPED, "SIGKILL"], capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    [left] = uploads_of(swift)
    assert left["Key"] == "stopped" and "Contents" not in swift.list_objects_v2(Bucket="bucket")
    swift.abort_multipart_upload(Bucket="bucket", Key="stopped", UploadId=left["UploadId"])
    assert not uploads_of(swift)
