# SPDX-License-Identifier: Apache-2.0
"""The shared libraries that binaries load, and the licences of what a folder holds: for tools/bundle and tools/package."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|pthread|rt|resolv|util|anl|nsl|mvec|BrokenLocale|nss_.*)\.so.*)$")
COMMON_LICENCE = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9+])")


def fail(text):
    sys.exit(f"{os.path.relpath(sys.argv[0])}: {text}")


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def files_below(folder):
    for directory, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(directory, name)


def shared_libraries(binary):
    """Name and path of all shared libraries that a binary loads, glibc's left out."""
    listing = subprocess.run(["ldd", binary], check=False, capture_output=True, text=True).stdout
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listing, re.MULTILINE):
        if not GLIBC.match(name):
            yield name, path
    for name in re.findall(r"^\s*(\S+) => not found", listing, re.MULTILINE):
        fail(f"{binary} needs {name}, which is not on this machine")


def compiler_file(name):
    """Path of a library, as the compiler finds it."""
    path = subprocess.run(["cc", "-print-file-name=" + name], check=True, capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(path):
        fail(f"{name} is not on this machine; tools/setup installs it")
    return path


def header_file(name):
    """Path of a header, as the compiler finds it."""
    rule = subprocess.run(["cc", "-M", "-x", "c", "-"], input=f"#include <{name}>\n", check=True, capture_output=True, text=True).stdout
    return next(word for word in rule.split() if word.endswith("/" + name))


def collect(binaries, opened_late, folder):
    """Copies what the binaries load into the folder, and libraries that are opened at run time. Returns the paths copied from."""
    os.makedirs(folder, exist_ok=True)
    sources = {}
    for binary in binaries:
        sources.update(shared_libraries(binary))
    for name in opened_late:
        sources[name] = compiler_file(name)
        sources.update(shared_libraries(sources[name]))
    for name, path in sources.items():
        shutil.copy2(os.path.realpath(path), os.path.join(folder, name))
    return sorted(sources.values())


# libarchive asks for a function of glibc 2.36; the tar part alone needs it for nothing that reads.
RANDOM = """#include <stdlib.h>
#include <sys/random.h>
static inline void random_fill(void *out, size_t bytes) {
  for (ssize_t got; bytes > 0; out = (char *)out + got, bytes -= (size_t)got)
    if ((got = getrandom(out, bytes, 0)) < 0) got = 0;
}
#define arc4random_buf random_fill
"""
LEFT_OUT = ["TEST", "TAR", "CAT", "CPIO", "UNZIP", "ACL", "XATTR", "ZLIB", "BZip2", "LIBB2", "LZ4", "ZSTD", "LZMA", "LIBXML2", "EXPAT", "NETTLE",
            "OPENSSL", "MBEDTLS", "PCREPOSIX"]


def tar_library(kept):
    """Path of a libarchive that reads tar files and needs nothing but an old glibc: of Debian's source of the package that is installed,
    with Debian's patches. Built in the folder `kept`, once for a version."""
    installed = compiler_file("libarchive.so.13")
    # A line for each architecture that has it, of one version.
    version = subprocess.run(["dpkg-query", "-W", "-f", "${source:Version}\n", package_of(installed)], check=True, capture_output=True,
                             text=True).stdout.split()[0]
    target = os.path.join(kept, version, "libarchive.so.13")
    if os.path.exists(target):
        return target
    # The machine's own places of Debian's packages, for their sources.
    places = subprocess.run(["apt-get", "indextargets", "--format", "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages",
                             "Origin: Debian"], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as work:
        sources, lists = os.path.join(work, "sources.list"), os.path.join(work, "lists")
        with open(sources, "w", encoding="utf-8") as file:
            file.write(places)
        for folder in (lists, os.path.join(work, "archives")):
            os.makedirs(os.path.join(folder, "partial"))
        with open(os.path.join(work, "random.h"), "w", encoding="utf-8") as file:
            file.write(RANDOM)
        apt = ["apt-get", "-qq", "-o", "Dir::Etc::SourceList=" + sources, "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::State::Lists=" + lists,
               "-o", "Dir::Cache=" + work, "-o", "APT::Sandbox::User="]

        def run(*command):
            done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=work)
            if done.returncode != 0:
                sys.stderr.write(done.stdout[-4000:])
                fail(f"libarchive {version} was not built from Debian's source: {command[0]} failed")

        run(*apt, "update")
        run(*apt, "source", "--only-source", "libarchive=" + version)
        source = next(path for path in glob.glob(os.path.join(work, "libarchive-*")) if os.path.isdir(path))
        built = os.path.join(work, "built")
        run("cmake", "-S", source, "-B", built, "-DCMAKE_BUILD_TYPE=Release", "-DHAVE_ARC4RANDOM_BUF=1",
            f"-DCMAKE_C_FLAGS=-include {work}/random.h -w", *(f"-DENABLE_{name}=OFF" for name in LEFT_OUT))
        run("cmake", "--build", built, "-j", str(os.cpu_count()), "--target", "archive")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(os.path.realpath(os.path.join(built, "libarchive", "libarchive.so")), target)
    return target


def package_of(path):
    """The package of Debian that brings a file. Packages may list a path from before /lib became a link to /usr/lib."""
    real = os.path.realpath(path)
    for candidate in (real, real.removeprefix("/usr"), path):
        found = subprocess.run(["dpkg-query", "-S", candidate], check=False, capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    return fail(f"no package brings {path}, so its licence is not known")


def write_licences(paths, folder):
    """Writes into the folder the licence of lade, and for each file that of its package, with the texts that this refers to."""
    os.makedirs(os.path.join(folder, "common"), exist_ok=True)
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    shutil.copy2(os.path.join(root, "LICENSE"), os.path.join(folder, "lade.txt"))
    for package in sorted({package_of(path) for path in paths}):
        with open(f"/usr/share/doc/{package}/copyright", encoding="utf-8", errors="replace") as file:
            text = file.read()
        with open(os.path.join(folder, package + ".txt"), "w", encoding="utf-8") as file:
            file.write(text)
        for name in set(COMMON_LICENCE.findall(text)):
            source = os.path.realpath("/usr/share/common-licenses/" + name)
            if os.path.exists(source):
                shutil.copy2(source, os.path.join(folder, "common", name))
