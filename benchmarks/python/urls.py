#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to read an object from a web server into host memory: 64 ranges of 8 MiB from nginx on the loopback, one worker.

In turn with each other: lade's Pipeline.read_many() on the software device, whose "copy to the device" is one more copy by a processor;
plain sockets (8 threads, recv_into), which is the bound; and obstore's get_ranges() and s3dlio's get() where they are installed (a
row "left_out" says what is not; s3torchconnector reads from S3 alone). obstore joins adjacent ranges to one request. Medians of the
rounds, of seconds and of this process's processor time for a GiB; the bytes of the first, uncounted round are compared.

usage: benchmarks/python/urls.py [--small] [--out FILE] [--folder DIR] [--rounds N]
  --small   64 ranges of 64 KiB and one round: to see that it runs; worth no figure
  --folder  where the object is made, and removed; a temporary folder without it
exit status: 0; 1 where bytes differ; 77 without nginx
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import lade

SERVERS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "sources" / "servers.py"
RANGES = 64


def module(name):
    try:
        return __import__(name, fromlist=["*"])
    except ImportError:
        return None


class Lade:
    def __init__(self, url, size):
        device = lade.software_device()
        self.pipeline = lade.Pipeline(device, chunk_bytes=size, depth=16)
        self.whole = lade.DeviceAllocator(device).empty(RANGES * size, "uint8")
        self.url = url

    def read(self):
        self.pipeline.read_into(f"{self.url}/bucket/object", 0, self.whole).wait()
        return np.from_dlpack(self.whole)


class Sockets:
    """A thread and a connection for each of eight, one range after the other."""

    def __init__(self, url, size):
        self.port, self.size = int(url.rpartition(":")[2]), size
        self.whole = np.empty(RANGES * size, np.uint8)

    def part(self, first):
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            for number in range(first, RANGES, 8):
                begin, end = number * self.size, (number + 1) * self.size
                connection.sendall(f"GET /bucket/object HTTP/1.1\r\nHost: a\r\nRange: bytes={begin}-{end - 1}\r\n\r\n".encode())
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(1024)
                body = head.partition(b"\r\n\r\n")[2]
                view = memoryview(self.whole)[begin:end]
                view[: len(body)] = body
                at = len(body)
                while at < self.size:
                    at += connection.recv_into(view[at:])

    def read(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(self.part, range(8)))
        return self.whole


class Obstore:
    def __init__(self, url, size):
        self.obstore = module("obstore")
        self.store = module("obstore.store").HTTPStore.from_url(f"{url}/bucket", client_options={"allow_http": True})
        self.starts = [number * size for number in range(RANGES)]
        self.size = size

    def read(self):
        parts = self.obstore.get_ranges(self.store, "object", starts=self.starts, lengths=[self.size] * RANGES)
        return parts


class S3dlio:
    def __init__(self, url, size):
        os.environ.update(AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION="us-east-1")
        self.s3dlio, self.size = module("s3dlio"), size

    def read(self):
        return self.s3dlio.get("s3://bucket/object")


WAYS = {"lade": (Lade, None), "sockets": (Sockets, None), "obstore": (Obstore, "obstore"), "s3dlio": (S3dlio, "s3dlio")}


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def same(found, expected):
    parts, at = found if isinstance(found, list) else [found], 0
    for part in parts:
        view = np.frombuffer(part, np.uint8)
        if not np.array_equal(view, expected[at : at + len(view)]):
            return False
        at += len(view)
    return at == len(expected)


def measure(url, expected, size, rounds, emit):
    ways, taken, good = {}, {}, True
    for name, (kind, needs) in WAYS.items():
        if needs and module(needs) is None:
            emit({"way": name, "left_out": f"{needs} is not installed"})
            continue
        ways[name], taken[name] = kind(url, size), []
        if not same(ways[name].read(), expected):
            emit({"way": name, "differs": True})
            good = False
    for number in range(rounds):
        for name, way in ways.items():
            processor, begin = processor_seconds(), time.perf_counter()
            kept = way.read()
            seconds, used = time.perf_counter() - begin, processor_seconds() - processor
            del kept
            taken[name].append((seconds, used * (1 << 30) / len(expected)))
            emit({"way": name, "round": number, "seconds": seconds, "cpu_s_per_gib": taken[name][-1][1]})
    bound = statistics.median(seconds for seconds, _ in taken["sockets"])
    for name, rows in taken.items():
        seconds, used = (statistics.median(row[part] for row in rows) for part in (0, 1))
        emit({"way": name, "gb_per_s": len(expected) / seconds / 1e9, "cpu_s_per_gib": used, "of_sockets": bound / seconds})
        print(f"{name:8} {len(expected) / seconds / 1e9:6.2f} GB/s ({bound / seconds:.2f} of sockets)  {used:6.3f} s/GiB")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--folder")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    size = 64 << 10 if arguments.small else 8 << 20
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, open(arguments.out or os.devnull, "w", encoding="utf-8") as out:
        os.mkdir(f"{folder}/bucket")
        expected = np.random.default_rng(3).integers(0, 256, RANGES * size, np.uint8)
        expected.tofile(f"{folder}/bucket/object")
        with subprocess.Popen([sys.executable, SERVERS, "nginx", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            port = server.stdout.readline()
            if not port:
                print("nginx is not installed", file=sys.stderr)
                return 77
            good = measure(f"http://127.0.0.1:{int(port)}", expected, size, 1 if arguments.small else arguments.rounds,
                           lambda row: print(json.dumps(row), file=out, flush=True))
            server.stdin.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
