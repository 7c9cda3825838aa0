#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Python's tarfile cannot open an archive that has a pax global header and no member, though it writes such archives, as git does of
# a tree without files; GNU tar reads them as empty.
# Seen: Python 3.11.7, tar (GNU tar) 1.34:
#   written by tarfile: tar lists nothing, exit status 0; tarfile: ReadError
#   written by git:     tar lists nothing, exit status 0; tarfile: ReadError
# Exit status: 0 as above; 1 otherwise; 77 without git or GNU tar.
set -eu
git --version >/dev/null 2>&1 && tar --version 2>/dev/null | grep -q GNU || { echo "no git or no GNU tar"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -c 'import sys; print("Python", sys.version.split()[0])'
tar --version | head -n 1
git --version
python3 -c 'import tarfile; tarfile.open("tarfile.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}).close()'
git init -q repository
git -C repository -c user.name=n -c user.email=e@example.org commit -q --allow-empty -m empty
git -C repository archive --format=tar -o ../git.tar HEAD
right=0
for writer in tarfile git; do
  status=0
  tar --list --file "$writer.tar" >listed || status=$?
  listed=$(wc -l <listed)
  opened=$(python3 - "$writer.tar" <<'END'
import sys
import tarfile

try:
    with tarfile.open(sys.argv[1], "r:") as archive:
        print(len(archive.getmembers()), "members")
except tarfile.ReadError:
    print("ReadError")
END
  )
  echo "written by $writer: tar lists $listed lines, exit status $status; tarfile: $opened"
  [ "$listed" = 0 ] && [ "$status" = 0 ] && [ "$opened" = ReadError ] || right=1
done
exit $right
