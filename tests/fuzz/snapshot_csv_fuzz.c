/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a log of RMM's (first byte even), or as fields behind its header (odd). */
#include <string.h>

#include "inspect/formats/rmm_csv.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/snapshot_fuzz.h"

enum { FILE_MAX = 8192 };

static const char *const pieces[] = {
    ",",
    "\n",
    "\r\n",
    "1,",
    "4711,",
    "00:00:00.000001,",
    "23:59:59.999999,",
    "12:30:00:5,",
    "1700000000.25,",
    ":",
    ".",
    "allocate,",
    "free,",
    "allocate failure,",
    "0x7f00,",
    "7f00,",
    "(nil),",
    "0xffffffffffffffff,",
    "1024,",
    "18446744073709551615,",
    "0",
    "0x0",
    "x",
    "1,00:00:01.5,allocate,0x1000,512,0x0\n",
    "1,00:00:02.5,free,0x1000,512,0x0\n",
};

static void pieces_run(const uint8_t *data, size_t size) {
  static char file[FILE_MAX];
  fuzz_reader reader = {data, data + size};
  size_t bytes = strlen(ladei_rmm_csv_header);
  memcpy(file, ladei_rmm_csv_header, bytes);
  file[bytes++] = '\n';
  while (!fuzz_done(&reader) && bytes + 80 < FILE_MAX) {
    const char *piece = pieces[fuzz_below(&reader, sizeof pieces / sizeof *pieces)];
    memcpy(file + bytes, piece, strlen(piece));
    bytes += strlen(piece);
  }
  snapshot_fuzz_file(ladei_inspect_read_rmm_csv, file, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 1)
    pieces_run(data + 1, size - 1);
  else
    snapshot_fuzz_file(ladei_inspect_read_rmm_csv, data + 1, size - 1);
  return 0;
}
