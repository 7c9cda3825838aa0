/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of tensors: an open hash table that is filled once.
 *
 * I1  A name lies at the place of its hash, or after it with no free place between.
 * I2  At most half of the places are taken, so that a search ends.
 * The hash has a seed of the system's, so that no file can be made whose names all fall on one place.
 * Locks: none; constant once it is filled.
 */
#include "loaders/names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

lade_status ladei_loader_names_make(ladei_loader_names *names, size_t count) {
  size_t places = 2;
  while (places / 2 < count) places *= 2;
  *names = (ladei_loader_names){.places = calloc(places, sizeof *names->places), .mask = places - 1};
  if (names->places == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu names", count);
  if (getrandom(&names->seed, sizeof names->seed, GRND_NONBLOCK) < 0)
    names->seed = 0; /* early in a boot: any will do */
  return LADE_OK;
}

/* Where the name is, or where it goes (I1). */
static ladei_loader_name *place_of(const ladei_loader_names *names, const char *text) {
  size_t at = (size_t)XXH3_64bits_withSeed(text, strlen(text), names->seed) & names->mask;
  while (names->places[at].text != NULL && strcmp(names->places[at].text, text) != 0) at = (at + 1) & names->mask;
  return &names->places[at];
}

bool ladei_loader_names_add(ladei_loader_names *names, const char *text, size_t number) {
  ladei_loader_name *place = place_of(names, text);
  if (place->text != NULL) return false;
  *place = (ladei_loader_name){text, number};
  return true;
}

const ladei_loader_name *ladei_loader_names_find(const ladei_loader_names *names, const char *text) {
  if (names->places == NULL) return NULL;
  const ladei_loader_name *place = place_of(names, text);
  return place->text != NULL ? place : NULL;
}

void ladei_loader_names_dispose(ladei_loader_names *names) {
  free(names->places);
  *names = (ladei_loader_names){0};
}
