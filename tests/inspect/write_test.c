/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers that fail: at pieces of each format the call ends with what the writer returned, and calls it no more. A pipe
 * whose reader has gone is an error like others.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "inspect/formats/format.h"
#include "tests/inspect/sample.h"
#include "tests/shim/lade_test.h"
#include "tests/support/comma_locale.h"

typedef struct fragile {
  size_t calls, fails_at; /* from 1 on; 0: never */
  size_t bytes;
  int pipe; /* -1: the bytes go nowhere */
} fragile;

static lade_status fragile_write(void *user, const void *data, size_t bytes) {
  fragile *f = user;
  f->calls++;
  f->bytes += bytes;
  if (f->calls == f->fails_at) return ladei_error(LADE_ERR_CALLBACK, 4711, "the writer has had enough");
  if (f->pipe < 0) return LADE_OK;
  if (write(f->pipe, data, bytes) == (ssize_t)bytes) return LADE_OK;
  return ladei_error(LADE_ERR_IO, errno, "the pipe: %s", strerror(errno));
}

/* Formats that are written, and can be here: some need a library. */
static bool format_next(size_t *index, const ladei_inspect_format **out) {
  while ((*out = ladei_inspect_format_at((*index)++)) != NULL)
    if ((*out)->write != NULL) return true;
  return false;
}

LADE_TEST(SnapshotWrite, EndsWhereItsWriterFails) {
  lade_snapshot *snapshot = sample_create(&sample_long);
  LADE_ASSERT(snapshot != NULL);
  const ladei_inspect_format *format;
  size_t pieces = 0;
  for (size_t i = 0; format_next(&i, &format);) {
    lade_test_context("%s", format->name);
    fragile whole = {.pipe = -1};
    lade_status status = lade_snapshot_write(snapshot, format->format, NULL, fragile_write, &whole);
    if (status == LADE_ERR_UNSUPPORTED) continue;
    LADE_EXPECT_OK(status);
    LADE_EXPECT(whole.calls > 0 && whole.bytes > 0);
    size_t step = whole.calls / 3 + 1;
    for (size_t at = 1; at <= whole.calls; at += step) {
      fragile f = {.fails_at = at, .pipe = -1};
      LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_snapshot_write(snapshot, format->format, NULL, fragile_write, &f));
      LADE_EXPECT_EQ_INT(lade_last_error()->native_code, 4711);
      LADE_EXPECT_EQ_SIZE(f.calls, at);
      pieces++;
    }
  }
  lade_test_context("%s", "");
  LADE_EXPECT(pieces > 15);
  lade_snapshot_destroy(snapshot);
}

/* The signal is the program's affair, as it is its writer that writes; what it returns is what the call does. */
LADE_TEST(SnapshotWrite, ToAPipeWithoutAReaderIsAnError) {
  int ends[2];
  LADE_ASSERT_EQ_INT(pipe(ends), 0);
  close(ends[0]);
  void (*before)(int) = signal(SIGPIPE, SIG_IGN);
  lade_snapshot *snapshot = sample_create(&sample_small);
  fragile f = {.pipe = ends[1]};
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_snapshot_write(snapshot, LADE_SNAPSHOT_JSON, NULL, fragile_write, &f));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EPIPE);
  LADE_EXPECT_EQ_SIZE(f.calls, 1);
  lade_snapshot_destroy(snapshot);
  signal(SIGPIPE, before);
  close(ends[1]);
}

/* --- locales ------------------------------------------------------------------------------------------------------ */

enum { MOST_FORMATS = 20 };

/* The snapshot in every format; malloc(). */
static void formats_write(const lade_snapshot *snapshot, char *files[MOST_FORMATS], size_t bytes[MOST_FORMATS]) {
  const ladei_inspect_format *format;
  for (size_t i = 0; format_next(&i, &format);) files[i] = sample_write(snapshot, format->write, &bytes[i]);
}

/*
 * printf() writes a comma where the locale's numbers have one. The page did not open then, lade's JSON and the counters could not be
 * read; and of a number with a point strtod() reads what is before it.
 */
LADE_TEST(SnapshotWrite, DoesNotDependOnTheLocale) {
  char *files[MOST_FORMATS] = {NULL}, *in_locale[MOST_FORMATS] = {NULL};
  size_t bytes[MOST_FORMATS] = {0}, bytes_in_locale[MOST_FORMATS] = {0};
  lade_snapshot *snapshot = sample_create(&sample_small), *again = NULL;
  LADE_ASSERT(snapshot != NULL);
  snapshot->time_ns += 1; /* a part of a microsecond */
  formats_write(snapshot, files, bytes);
  char *json = sample_write(snapshot, ladei_inspect_format_of(LADE_SNAPSHOT_JSON)->write, bytes), room[256] = "";
  bool has_locale = support_comma_locale_begin();
  if (has_locale) formats_write(snapshot, in_locale, bytes_in_locale);
  if (has_locale && json != NULL) LADE_EXPECT_OK(lade_snapshot_read(json, bytes[0], "json", &again));
  support_comma_locale_end();
  if (again != NULL) LADE_EXPECT_EQ_STR(sample_difference(snapshot, again, 1, room), "");
  const ladei_inspect_format *format;
  for (size_t i = 0; has_locale && format_next(&i, &format);) {
    lade_test_context("%s", format->name);
    LADE_EXPECT_EQ_SIZE(bytes_in_locale[i], bytes[i]);
    bool same = bytes[i] == bytes_in_locale[i] && files[i] != NULL && memcmp(files[i], in_locale[i], bytes[i]) == 0;
    LADE_EXPECT(same);
  }
  lade_test_context("%s", "");
  for (size_t i = 0; i < MOST_FORMATS; i++) {
    free(files[i]);
    free(in_locale[i]);
  }
  free(json);
  lade_snapshot_destroy(again);
  lade_snapshot_destroy(snapshot);
  if (!has_locale) LADE_SKIP("no locale with a decimal comma can be had");
}

/* --- names -------------------------------------------------------------------------------------------------------- */

/* A block with a stack of one frame. */
static lade_snapshot *named_create(const char *file, const char *function) {
  lade_snapshot *snapshot = NULL;
  ladei_snapshot_frame frame = {.line = 7, .module = LADEI_SNAPSHOT_NONE};
  uint32_t stack;
  if (ladei_inspect_create(&snapshot) != LADE_OK) return NULL;
  LADE_EXPECT_OK(ladei_inspect_text(snapshot, file, &frame.file));
  LADE_EXPECT_OK(ladei_inspect_text(snapshot, function, &frame.function));
  LADE_EXPECT_OK(ladei_inspect_stack(snapshot, &frame, 1, &stack));
  LADE_EXPECT_OK(ladei_inspect_part_begin(snapshot, LADE_PART_DEVICE, 0, "cache"));
  ladei_snapshot_block *block = LADEI_INSPECT_ADD(&snapshot->blocks);
  ladei_snapshot_segment *segment = LADEI_INSPECT_ADD(&snapshot->segments);
  if (block != NULL)
    *block = (ladei_snapshot_block){
        .address = 0x1000, .bytes = 512, .requested_bytes = 512, .state = LADE_DEVICE_BLOCK_ALLOCATED, .stack = stack};
  if (segment != NULL)
    *segment = (ladei_snapshot_segment){
        .address = 0x1000, .total_bytes = 512, .block_count = 1, .stack = LADEI_SNAPSHOT_NONE, .numa_node = -1};
  LADE_EXPECT_OK(ladei_inspect_finish(snapshot));
  return snapshot;
}

/* A ';' in a name made two words of a frame; a line break ends the line for who splits text as Python does. */
LADE_TEST(SnapshotWrite, FoldedTextHasAWordForEachFrameWhateverItsName) {
  lade_snapshot *snapshot = named_create("/src/a;b\n.py", "operator()<'\v'; \f.>");
  LADE_ASSERT(snapshot != NULL);
  size_t bytes = 0;
  char *text = sample_write(snapshot, ladei_inspect_format_of(LADE_SNAPSHOT_FOLDED)->write, &bytes), line[100] = "";
  LADE_ASSERT(text != NULL);
  LADE_ASSERT(bytes < sizeof line);
  memcpy(line, text, bytes);
  LADE_EXPECT_EQ_STR(line, "stream_0;active_allocated;a:b?.py:7:operator()<'?': ?.> 512\n");
  free(text);
  lade_snapshot_destroy(snapshot);
}
