/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/loaders/tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>

#include "tests/shim/lade_test.h"

static void member_write(struct archive *archive, const tar_member *member) {
  struct archive_entry *entry = archive_entry_new();
  LADE_ASSERT(entry != NULL);
  archive_entry_set_pathname(entry, member->name);
  archive_entry_set_filetype(entry, member->data != NULL || member->link != NULL ? AE_IFREG : AE_IFDIR);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_size(entry, (la_int64_t)member->bytes);
  if (member->link != NULL) archive_entry_set_hardlink(entry, member->link);
  LADE_EXPECT_EQ_INT(archive_write_header(archive, entry), ARCHIVE_OK);
  if (member->bytes > 0) LADE_EXPECT_EQ_INT(archive_write_data(archive, member->data, member->bytes), member->bytes);
  archive_entry_free(entry);
}

void tar_write(const char *path, const char *format, const tar_member *members, size_t count) {
  struct archive *archive = archive_write_new();
  LADE_ASSERT(archive != NULL);
  LADE_EXPECT_EQ_INT(strncmp(format, "gnutar", 6) == 0 ? archive_write_set_format_gnutar(archive)
                     : strncmp(format, "pax", 3) == 0  ? archive_write_set_format_pax(archive)
                                                       : archive_write_set_format_ustar(archive),
                     ARCHIVE_OK);
  if (strstr(format, "+gzip") != NULL) LADE_EXPECT_EQ_INT(archive_write_add_filter_gzip(archive), ARCHIVE_OK);
  LADE_EXPECT_EQ_INT(archive_write_open_filename(archive, path), ARCHIVE_OK);
  for (size_t i = 0; i < count; i++) member_write(archive, &members[i]);
  LADE_EXPECT_EQ_INT(archive_write_close(archive), ARCHIVE_OK);
  archive_write_free(archive);
}
