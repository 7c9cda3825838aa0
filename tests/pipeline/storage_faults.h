/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls on files that fail when a test says so: the linker takes the program's own definitions first.
 *
 *   storage_faults_set((storage_faults){.pread_short = 3});   // every third pread moves one byte only
 *   ...
 *   storage_faults_set((storage_faults){0});
 *
 * Or any call, whatever it is, by its number: for (int n = 1;; n++) with .nth = n, until storage_faults_count() < n.
 */
#ifndef LADE_TESTS_PIPELINE_STORAGE_FAULTS_H
#define LADE_TESTS_PIPELINE_STORAGE_FAULTS_H

#include <stdbool.h>

/* What becomes of the call that `nth` names. */
typedef enum storage_faults_how {
  STORAGE_FAULTS_FAIL, /* it does nothing, and fails; but what is closed is closed */
  STORAGE_FAULTS_LIE,  /* a change of a folder or a file is made, and fails all the same, as over a network */
  STORAGE_FAULTS_KILL, /* SIGKILL comes before it */
} storage_faults_how;

/* Of each call every n-th, 0: none. An error is an errno. */
typedef struct storage_faults {
  int read_interrupted;
  int read_short;
  int read_error; /* from the third read on; errno */
  int write_interrupted;
  int write_short;
  int write_error;    /* from the third write on; errno */
  bool write_nothing; /* every write moves no byte, and is no error */
  int open_direct;    /* any open with O_DIRECT; errno */
  int open_nameless;  /* any open with O_TMPFILE; errno */
  int link;           /* errno */
  int rename;         /* errno */
  int flush;          /* errno */
  int flush_folder;   /* of folders alone; errno */
  int closing;        /* of files open for writing; errno */
  int lock;           /* errno */
  int owner;          /* changes of owner and group; errno */
  bool foreign;       /* files that are open for reading alone belong to another user and group */
  int attribute_set;  /* of extended attributes and lists; errno */
  bool no_proc;       /* what is looked up below /proc is not there */
  int nth;            /* of all calls, from 1 on; 0: none */
  storage_faults_how how;
  int code;                       /* of the n-th; errno */
  bool flush_nothing;             /* flushing succeeds, and does nothing: tests need no stable storage */
  void (*before_nth)(void *user); /* called instead of a failure */
  void *user;
} storage_faults;

/* Calls since storage_faults_set(). */
int storage_faults_count(void);
/* Which one the n-th was, "" where it did not come. */
const char *storage_faults_nth(void);

/* Also starts counting anew. Not while transfers are under way. */
void storage_faults_set(storage_faults faults);

#endif /* LADE_TESTS_PIPELINE_STORAGE_FAULTS_H */
