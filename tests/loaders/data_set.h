/* SPDX-License-Identifier: Apache-2.0 */
/* A data set of one file whose records are of many sizes, and loaders on it. */
#ifndef LADE_TESTS_LOADERS_DATA_SET_H
#define LADE_TESTS_LOADERS_DATA_SET_H

#include "tests/loaders/fixture.h"

enum { DATA_SET_SEED = 77, DATA_SET_RECORDS = 101, DATA_SET_FIELDS = 2 };

typedef struct data_set {
  support_temp_dir dir;
  char *path;
  lade_record_index *index;
} data_set;

/* Two fields a record, of 0 to 3000 bytes. The file holds the pattern of DATA_SET_SEED. */
bool data_set_open(data_set *set);
void data_set_close(data_set *set);
/* Writes the file anew, the same one, after a test has cut it. */
void data_set_restore(const data_set *set);

/* Options for batches of `records`; on device 0 of a fixture. */
lade_loader_options data_set_options(uint64_t records);
lade_status data_set_loader(const fixture *f, const data_set *set, const lade_loader_options *options,
                            lade_loader **out);

/* Fails the test unless every byte of the batch is as it should be, gaps and tables included. */
void data_set_expect(const fixture *f, const data_set *set, const lade_batch *batch);

#endif /* LADE_TESTS_LOADERS_DATA_SET_H */
