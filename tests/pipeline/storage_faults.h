/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls on files that fail when they are told to: the program's own definitions stand before the C library's.
 *
 *   storage_faults_set((storage_faults){.pread_short = 3});   // every third pread moves one byte only
 *   ...
 *   storage_faults_set((storage_faults){0});
 */
#ifndef LADE_TESTS_PIPELINE_STORAGE_FAULTS_H
#define LADE_TESTS_PIPELINE_STORAGE_FAULTS_H

/* Of each call every n-th, 0: none. An error is an errno. */
typedef struct storage_faults {
  int read_interrupted;
  int read_short;
  int read_error; /* from the third read on; errno */
  int write_interrupted;
  int write_short;
  int write_error;   /* from the third write on; errno */
  int open_direct;   /* any open with O_DIRECT; errno */
  int open_nameless; /* any open with O_TMPFILE; errno */
  int link;          /* errno */
  int rename;        /* errno */
  int flush;         /* errno */
} storage_faults;

/* Also starts counting anew. Not while transfers are under way. */
void storage_faults_set(storage_faults faults);

#endif /* LADE_TESTS_PIPELINE_STORAGE_FAULTS_H */
