# SPDX-License-Identifier: Apache-2.0
"""The shared libraries that binaries load, and the licences of what a folder holds: for tools/bundle and tools/package."""

import os
import re
import shutil
import subprocess
import sys

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
