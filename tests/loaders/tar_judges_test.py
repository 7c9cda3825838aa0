#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tar shards, whole and damaged, judged by GNU tar and by Python's tarfile.

usage: tar_judges_test.py TAR_MEMBERS

An archive is whole when GNU tar lists it without an error, with --ignore-zeros as without, tarfile sees the same members
in the same places, and a block of zeros follows the last, with nothing but zeros behind it. (Both judges also take an
archive that just ends, and some bytes of garbage.) Then the index has the very same; any other archive it refuses, naming a
byte. It may refuse one more: of a damaged extended header the judges make what they can.
"""

import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import unittest

BLOCK = 512
PROGRAM = None
MEMBERS = 41
SEED = 20260917


def bytes_of(number):
    return random.Random(number).randbytes([0, 1, 511, 512, 513, 2000][number % 6])


def python_archive(format, count=MEMBERS, first=0):
    """Files, and what else lies in shards: folders, links, long names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for i in range(first, first + count):
            data = bytes_of(i)
            name = f"d{i % 3}/{'long/' * 30 if i % 13 == 5 else ''}m{i:04}.bin"
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1600000000 + (0.5 if format == tarfile.PAX_FORMAT else 0)
            archive.addfile(info, io.BytesIO(data))
            if i % 10 == 3:
                link = tarfile.TarInfo(f"d{i % 3}/link{i}")
                link.type = tarfile.SYMTYPE
                link.linkname = name
                archive.addfile(link)
    return out.getvalue()


def zeroed(archive, block):
    return archive[:block * BLOCK] + bytes(BLOCK) + archive[(block + 1) * BLOCK:]


def headers(archive):
    """Places of the headers of files, in blocks."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        return [member.offset // BLOCK for member in file if member.isreg()]


def content_end(archive):
    return len(archive.rstrip(b"\0")) // BLOCK * BLOCK + BLOCK


def gnu_list(path, ignore_zeros):
    """Names of the files, and whether GNU tar saw no error."""
    command = ["tar", "--list", "--file", path, "--quoting-style=literal", "--force-local"]
    if ignore_zeros:
        command.append("--ignore-zeros")
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape",
                          env={**os.environ, "LC_ALL": "C"}, check=False)
    return [name for name in done.stdout.splitlines() if name.endswith(".bin")], done.returncode == 0


def python_list(path, ignore_zeros):
    """Names, offsets and sizes of the files that tarfile sees, or None."""
    try:
        with tarfile.open(path, mode="r:", ignore_zeros=ignore_zeros) as archive:
            return [(member.name, member.offset_data, member.size) for member in archive
                    if member.isreg() and member.name.endswith(".bin")]
    except (tarfile.TarError, OSError, ValueError, UnicodeError):
        return None


def has_mark(path, ignore_zeros):
    """Whether a block of zeros follows the last member, and nothing else."""
    with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:", ignore_zeros=ignore_zeros) as archive:
        last = archive.getmembers()[-1]
        file.seek(last.offset_data + (last.size + BLOCK - 1) // BLOCK * BLOCK)
        rest = file.read()
        return len(rest) >= BLOCK and not rest.strip(b"\0")


def lade_lists(paths, ignore_zeros):
    """Of each path the list that the index has, or the text of its refusal."""
    option = ["--ignore-zeros"] if ignore_zeros else []
    done = subprocess.run([PROGRAM, *option, *paths], capture_output=True, text=True, errors="surrogateescape", check=True)
    lists, path = {}, None
    for line in done.stdout.splitlines():
        if line.startswith(" "):
            name, offset, size = line[1:].rsplit(" ", 2)
            lists[path].append((name + ".bin", int(offset), int(size)))
        else:
            path, status, *text = line.split(" ", 2)
            lists[path] = [] if status == "OK" else status + " " + " ".join(text)
    return lists


class Judges(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.paths = []

    def tearDown(self):
        self.folder.cleanup()

    def add(self, what, archive):
        path = os.path.join(self.folder.name, f"{len(self.paths):04}_{what}.tar".replace(" ", "_"))
        with open(path, "wb") as file:
            file.write(archive)
        self.paths.append(path)
        return path

    def judge_one(self, path, ignore_zeros, found):
        names, content = gnu_list(path, ignore_zeros)
        all_names, all_content = gnu_list(path, True)
        seen = python_list(path, ignore_zeros)
        whole = content and all_content and names == all_names and seen is not None and [s[0] for s in seen] == names \
            and has_mark(path, ignore_zeros)
        if whole and not (isinstance(found, str) and "pax" in found):
            self.assertEqual(found, seen, f"{path}: GNU tar and tarfile see a whole archive")
        else:
            self.assertIsInstance(found, str, f"{path}: {len(found)} members were taken; GNU tar lists {len(names)}, "
                                  f"with --ignore-zeros {len(all_names)}, content: {content}, {all_content}")
            self.assertRegex(found, r"LADE_ERR_FORMAT .*: byte \d+: ", path)
        return whole

    def judge(self, ignore_zeros=False):
        """How many of the archives are whole."""
        found = lade_lists(self.paths, ignore_zeros)
        return sum(self.judge_one(path, ignore_zeros, found[path]) for path in self.paths)

    def test_whole_archives(self):
        for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            self.add(f"python {format}", python_archive(format))
        files = os.path.join(self.folder.name, "files")
        os.makedirs(os.path.join(files, "d"))
        for i in range(12):
            with open(os.path.join(files, "d", f"m{i:02}.bin"), "wb") as file:
                file.write(bytes_of(i))
        for format in ("v7", "oldgnu", "gnu", "ustar", "posix"):
            path = self.add(f"gnu {format}", b"")
            subprocess.run(["tar", "--create", "--file", path, "--format", format, "--sort=name", "-C", files, "d"],
                           check=True)
        self.assertEqual(self.judge(), len(self.paths))
        self.assertEqual(self.judge(ignore_zeros=True), len(self.paths))

    def test_one_block_zeroed(self):
        """One zeroed header gave 13 of 41 records and LADE_OK."""
        for format in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT):
            archive = python_archive(format, 12)
            for block in range(content_end(archive) // BLOCK):
                self.add(f"zeroed block {block} {format}", zeroed(archive, block))
        whole = self.judge()
        self.assertGreater(whole, 0)  # blocks of data
        self.assertLess(whole, len(self.paths) - 20)

    def test_concatenated(self):
        """Of archives one behind the other the index had the first, and said LADE_OK."""
        first, second = python_archive(tarfile.GNU_FORMAT, 9), python_archive(tarfile.PAX_FORMAT, 7, 100)
        self.add("two", first + second)
        self.add("three", first + second + python_archive(tarfile.USTAR_FORMAT, 3, 200))
        self.add("one mark", first[:content_end(first) + BLOCK] + second)
        self.add("far apart", first + bytes(300 * BLOCK) + second)
        self.add("no mark between", first[:content_end(first)] + second)
        self.add("nothing in front", bytes(10240) + second)
        self.assertEqual(self.judge(), 1)
        self.assertEqual(self.judge(ignore_zeros=True), len(self.paths))

    def test_ends(self):
        archive = python_archive(tarfile.USTAR_FORMAT, 5)
        end = content_end(archive)
        for garbage in (b"x", bytes(511) + b"x", bytes(3 * BLOCK) + b"x" * BLOCK, b"garbage " * 400):
            self.add(f"garbage {len(garbage)}", archive + garbage)
            self.add(f"garbage after two blocks {len(garbage)}", archive[:end + 2 * BLOCK] + garbage)
        self.add("two blocks", archive[:end + 2 * BLOCK])
        self.add("longer", archive + bytes(100 * BLOCK))
        self.add("data cut", archive[:end - BLOCK - 100])
        self.add("header cut", archive[:headers(archive)[3] * BLOCK + 300])
        self.assertEqual(self.judge(), 2)
        self.assertEqual(self.judge(ignore_zeros=True), 2)

    def test_random_damage(self):
        rng = random.Random(SEED)
        for i in range(120):
            archive = bytearray(python_archive(rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)), 6))
            at = rng.randrange(content_end(bytes(archive)))
            kind = rng.randrange(5)
            if kind == 0:
                archive[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del archive[at:at + rng.choice((1, 100, BLOCK, 2 * BLOCK))]
            elif kind == 2:
                archive[at:at] = rng.randbytes(rng.choice((1, BLOCK, 3 * BLOCK)))
            elif kind == 3:
                block = at // BLOCK * BLOCK
                archive[block:block + BLOCK] = rng.randbytes(BLOCK)
            else:
                block = at // BLOCK * BLOCK
                archive[block:block] = bytes(BLOCK * rng.randrange(1, 4))
            self.add(f"kind {kind} at {at} {i}", bytes(archive))
        whole = self.judge()
        self.assertGreater(whole, 5)
        self.assertLess(whole, 100)


class GlobalHeaders(unittest.TestCase):
    """Names and sizes in a global header were passed in silence: the judges saw other members."""

    def archive(self, **records):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers=records) as archive:
            for name, data in (("d/m1.bin", b"abc"), ("d/m2.bin", b"b" * 700)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    def found(self, archive):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "global.tar")
            with open(path, "wb") as file:
                file.write(archive)
            return lade_lists([path], False)[path], python_list(path, False)

    def test_that_speak_of_no_member_are_passed(self):
        for records in ({"comment": "c" * 2000}, {"comment": "a", "mtime": "1600000000.5", "paths": "x"}):
            index, seen = self.found(self.archive(**records))
            self.assertEqual(index, seen)
            self.assertEqual(len(seen), 2)

    def test_that_speak_of_members_are_refused(self):
        for key, value in (("path", "e/x.bin"), ("size", "3"), ("linkpath", "d/m1.bin"), ("GNU.sparse.realsize", "3")):
            index, _ = self.found(self.archive(comment="c", **{key: value}))
            self.assertRegex(str(index), r"LADE_ERR_FORMAT .*: byte 0: a global header gives all members behind it .*" + key)

    def with_header(self, archive, at, value):
        """The first header with other bytes in a field, and its sum."""
        header = bytearray(archive[:BLOCK])
        header[at:at + len(value)] = value
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        return bytes(header) + archive[BLOCK:]

    def test_are_read_in_every_notation(self):
        """A size in base 256, or of twelve digits, and a header without its magic: the judges obey them."""
        for key, value in (("path", "e/x.bin"), ("path", "long/" * 300 + "x.bin")):
            archive = self.archive(comment="c" * 700, **{key: value})
            size = int(archive[124:135], 8)
            for at, field in ((124, b"\x80" + size.to_bytes(11, "big")), (124, b"%012o" % size), (124, b" %10o " % size),
                              (257, bytes(8))):
                index, seen = self.found(self.with_header(archive, at, field))
                self.assertEqual([member[0] for member in seen], [value, value])
                self.assertRegex(str(index), r"LADE_ERR_FORMAT .*: byte 0: a global header gives all members behind it .*path")
        harmless = self.archive(comment="c" * 700)
        index, seen = self.found(self.with_header(harmless, 124, b"\x80" + int(harmless[124:135], 8).to_bytes(11, "big")))
        self.assertEqual(index, seen)

    def test_that_close_an_archive_speak_of_the_next(self):
        first = self.archive(comment="c")
        globals_alone = self.archive(path="e/x.bin")[:2 * BLOCK]
        archive = first[:content_end(first)] + globals_alone + bytes(2 * BLOCK) + self.archive()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "two.tar")
            with open(path, "wb") as file:
                file.write(archive)
            self.assertEqual(gnu_list(path, True), (["d/m1.bin", "d/m2.bin", "e/x.bin", "e/x.bin"], True))  # tarfile refuses it
            self.assertRegex(lade_lists([path], True)[path], r"LADE_ERR_FORMAT .*: a global header gives all members .*path")

    def test_that_cannot_be_read_are_refused(self):
        record = b"13 comment=c\n"
        for bad in (b"9999 mment=c\n", b"13 commentXc\n", b"01 comment=c\n", b"0 comment==c\n"):
            archive = self.archive(comment="c")
            self.assertIn(record, archive)
            index, _ = self.found(archive.replace(record, bad))
            self.assertRegex(str(index), r"LADE_ERR_FORMAT .*: byte 0: a global header that cannot be read")


class Sparse(unittest.TestCase):
    """A sparse member of no field had the whole shard refused."""

    def test_unwanted_members_are_passed(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, size, data in (("a.bin", 700, b"a" * 700), ("b.sparse", 1 << 20, b"x" * 5000), ("c.bin", 5, b"ccccc"),
                                     ("d.sparse", 3 << 20, b""), ("e.bin", 0, b"")):
                with open(os.path.join(folder, name), "wb") as file:
                    file.truncate(size)
                    file.seek(size // 8192 * 4096)
                    file.write(data[:max(0, size)])
                    if name.endswith(".bin"):
                        file.truncate(0)
                        file.seek(0)
                        file.write(data)
            variants = [["--format=oldgnu"], ["--format=gnu"]]
            variants += [["--format=posix", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")]
            names = ["a.bin", "b.sparse", "c.bin", "d.sparse", "e.bin"]
            for i, variant in enumerate(variants):
                paths.append(os.path.join(folder, f"{i}.tar"))
                subprocess.run(["tar", "--create", "--sparse", "--hole-detection=raw", *variant, "--file", paths[-1], "-C",
                                folder, *names], check=True)
            found = lade_lists(paths, False)
            for path, variant in zip(paths, variants):
                self.assertEqual(found[path], [s for s in python_list(path, False) if s[0].endswith(".bin")], variant)

    def test_wanted_ones_are_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "m.bin"), "wb") as file:
                file.truncate(1 << 20)
            path = os.path.join(folder, "wanted.tar")
            subprocess.run(["tar", "--create", "--sparse", "--hole-detection=raw", "--file", path, "-C", folder, "m.bin"],
                           check=True)
            self.assertRegex(lade_lists([path], False)[path], r"byte 0: m\.bin: it is sparse")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
