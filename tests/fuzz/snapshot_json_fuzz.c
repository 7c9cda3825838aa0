/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as lade's JSON of a snapshot (first byte even), or as words of it (odd). */
#include <string.h>

#include "inspect/formats/json_read.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/snapshot_fuzz.h"

enum { FILE_MAX = 8192 };

static const char *const pieces[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "0",
    "1",
    "-1",
    "7",
    "512",
    "4294967295",
    "18446744073709551615",
    "-9223372036854775808",
    "1.5",
    "1e999",
    "\"0x0\"",
    "\"0x7f00\"",
    "\"0xffffffffffffffff\"",
    "\"17\"",
    "\"\\ud83d\\ude00\"",
    "\"\\u0000\"",
    "\"x\"",
    "null",
    "true",
    "false",
    ",\"streams\":[\"0x0\",\"0x7\"]",
    ",\"pools\":[[\"0x0\",\"0x0\"],[\"0x1\",\"0x2\"]]",
    ",\"texts\":[\"\",\"a\",\"b\"]",
    ",\"parts\":[",
    "{\"kind\":\"device\"",
    "{\"kind\":\"pinned\"",
    ",\"device\":",
    ",\"name\":",
    ",\"history\":",
    ",\"time_ns\":",
    ",\"skew_ns\":",
    ",\"counters\":{",
    ",\"settings\":{",
    "\"k\":",
    ",\"segments\":{",
    ",\"blocks\":{",
    ",\"events\":{",
    "\"address\":[",
    ",\"address\":[",
    "\"bytes\":[",
    ",\"bytes\":[",
    ",\"block_count\":[",
    ",\"stream\":[",
    ",\"pool\":[",
    ",\"stack\":[",
    ",\"note\":[",
    ",\"state\":[",
    ",\"requested_bytes\":[",
    "\"action\":[",
    ",\"elapsed_ns\":[",
    ",\"label\":[",
    ",\"scopes\":[",
    "\"first_time_ns\":\"5\",",
    ",\"stacks\":{\"frame_count\":[",
    ",\"frames\":{\"function\":[",
    ",\"file\":[",
    ",\"line\":[",
    ",\"module\":[",
    ",\"modules\":{\"path\":[",
    ",\"base\":[",
    "]}",
    "}]}",
};

static void pieces_run(const uint8_t *data, size_t size) {
  static char file[FILE_MAX];
  static const char head[] = "{\"format\":\"lade-snapshot\",\"version\":1";
  fuzz_reader reader = {data, data + size};
  size_t bytes = sizeof head - 1;
  memcpy(file, head, bytes);
  while (!fuzz_done(&reader) && bytes + 80 < FILE_MAX) {
    const char *piece = pieces[fuzz_below(&reader, sizeof pieces / sizeof *pieces)];
    memcpy(file + bytes, piece, strlen(piece));
    bytes += strlen(piece);
  }
  file[bytes++] = '}';
  snapshot_fuzz_file(ladei_inspect_read_json, file, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 1)
    pieces_run(data + 1, size - 1);
  else
    snapshot_fuzz_file(ladei_inspect_read_json, data + 1, size - 1);
  return 0;
}
