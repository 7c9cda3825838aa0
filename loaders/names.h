/* SPDX-License-Identifier: Apache-2.0 */
/* A table of names with their numbers. */
#ifndef LADE_LOADERS_NAMES_H
#define LADE_LOADERS_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_loader_name {
  const char *text; /* borrowed; NULL: a free place */
  size_t number;
} ladei_loader_name;

/* All zero is a table without names. */
typedef struct ladei_loader_names {
  ladei_loader_name *places;
  size_t mask; /* places - 1; a power of two of places, twice the names or more */
  uint64_t seed;
} ladei_loader_names;

/* Room for `count` names. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_loader_names_make(ladei_loader_names *names, size_t count);
/* Adds a name, which the caller keeps. False: it is there. */
bool ladei_loader_names_add(ladei_loader_names *names, const char *text, size_t number);
/* NULL: it is not there. */
const ladei_loader_name *ladei_loader_names_find(const ladei_loader_names *names, const char *text);
void ladei_loader_names_dispose(ladei_loader_names *names);

#endif /* LADE_LOADERS_NAMES_H */
