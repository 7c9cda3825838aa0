/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a pickle of a snapshot (first byte even), or as opcodes and words of one (odd). */
#include <string.h>

#include "inspect/formats/pickle_read.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/snapshot_fuzz.h"

enum { FILE_MAX = 8192 };

#define PIECE(text)                                                                                                    \
  { text, sizeof text - 1 }
#define WORD(text) PIECE("\x8c" text)

static const struct {
  const char *text;
  size_t bytes;
} pieces[] = {
    PIECE("}"),
    PIECE("}("),
    PIECE("u"),
    PIECE("]("),
    PIECE("e"),
    PIECE("a"),
    PIECE("s"),
    PIECE("]"),
    PIECE(")"),
    PIECE("("),
    PIECE("N"),
    PIECE("\x88"),
    PIECE("\x89"),
    PIECE("K\x00"),
    PIECE("K\x05"),
    PIECE("M\x00\x02"),
    PIECE("J\x00\x10\x00\x00"),
    PIECE("\x8a\x06\x00\x00\x00\x00\x00\x7f"),
    PIECE("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff"),
    PIECE("\x86"),
    PIECE("\x85"),
    PIECE("t"),
    PIECE("d"),
    PIECE("l"),
    PIECE("0"),
    PIECE("1"),
    PIECE("2"),
    PIECE("\x94"),
    PIECE("h\x00"),
    PIECE("h\x01"),
    PIECE("h\x02"),
    PIECE("q\x03"),
    PIECE("h\x03"),
    PIECE("r\xff\x00\x00\x00"),
    PIECE("G?\xf0\x00\x00\x00\x00\x00\x00"),
    WORD("\x08segments"),
    WORD("\x0d"
         "device_traces"),
    WORD("\x0dhost_segments"),
    WORD("\x0bhost_traces"),
    WORD("\x04lade"),
    WORD("\x05parts"),
    WORD("\x07version"),
    WORD("\x04kind"),
    WORD("\x06"
         "device"),
    WORD("\x06pinned"),
    WORD("\x0dsegment_count"),
    WORD("\x0b"
         "event_count"),
    WORD("\x0fpinned_segments"),
    WORD("\x0b"
         "block_count"),
    WORD("\x06"
         "action"),
    WORD("\x05"
         "alloc"),
    WORD("\x03oom"),
    WORD("\x04"
         "addr"),
    WORD("\x04size"),
    WORD("\x06stream"),
    WORD("\x07time_us"),
    WORD("\x06"
         "frames"),
    WORD("\x07pool_id"),
    WORD("\x08"
         "filename"),
    WORD("\x04name"),
    WORD("\x04line"),
    WORD("\x07"
         "address"),
    WORD("\x0atotal_size"),
    WORD("\x06"
         "blocks"),
    WORD("\x05state"),
    WORD("\x08inactive"),
    WORD("\x10"
         "active_allocated"),
    WORD("\x09"
         "allocated"),
    WORD("\x07history"),
    WORD("\x09real_size"),
    WORD("\x14"
         "external_annotations"),
    WORD("\x12"
         "allocator_settings"),
    WORD("\x08"
         "counters"),
    WORD("\x08settings"),
    WORD("\x07modules"),
    WORD("\x06module"),
    WORD("\x05stage"),
};

static void pieces_run(const uint8_t *data, size_t size) {
  static char file[FILE_MAX];
  fuzz_reader reader = {data, data + size};
  size_t bytes = 2;
  memcpy(file, "\x80\x04", 2);
  while (!fuzz_done(&reader) && bytes + 64 < FILE_MAX) {
    unsigned number = fuzz_below(&reader, sizeof pieces / sizeof *pieces);
    memcpy(file + bytes, pieces[number].text, pieces[number].bytes);
    bytes += pieces[number].bytes;
  }
  file[bytes++] = '.';
  snapshot_fuzz_file(ladei_inspect_read_pickle, file, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 1)
    pieces_run(data + 1, size - 1);
  else
    snapshot_fuzz_file(ladei_inspect_read_pickle, data + 1, size - 1);
  return 0;
}
