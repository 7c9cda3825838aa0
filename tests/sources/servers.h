/* SPDX-License-Identifier: Apache-2.0 */
/* Servers on the loopback, each with a folder whose files it serves (servers.py says which there are). */
#ifndef LADE_TESTS_SOURCES_SERVERS_H
#define LADE_TESTS_SOURCES_SERVERS_H

#include <sys/types.h>

#include "tests/support/temp_dir.h"

typedef struct server {
  support_temp_dir dir;
  int input; /* its end is the server's */
  pid_t pid;
  int port;
  char url[64]; /* "http://127.0.0.1:PORT"; nginx-tls: https */
} server;

/* False: not installed, and the test is skipped; or the test failed. `option`, `value`: of servers.py, or NULL. */
bool server_start(server *s, const char *kind, const char *option, const char *value);
/* The process alone: the folder stays. */
void server_kill(server *s);
/* Starts it once more, on the same port. */
bool server_revive(server *s, const char *kind);
void server_stop(server *s);

/* Writes a file of the seed's pattern into the folder. */
void server_file(const server *s, const char *name, size_t bytes, uint64_t seed);
/* Whether a line of the log has the words. */
bool server_log_has(const server *s, const char *words);
/* How many lines of the log have them. */
size_t server_log_count(const server *s, const char *words);

/* Takes all variables away that sources read, and sets those of the list: name, value, ..., NULL. */
void server_environment(const char *const *variables);

#endif /* LADE_TESTS_SOURCES_SERVERS_H */
