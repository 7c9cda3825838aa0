/* SPDX-License-Identifier: Apache-2.0 */
/* Texts: paths in messages, and JSON that has to look as another program writes it, to the byte. */
#ifndef LADE_LOADERS_TEXT_H
#define LADE_LOADERS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

/* The end of a path, no longer than a message bears. */
const char *ladei_loader_path_text(const char *path);

/* The name of a field of a list's element, for messages: "targets[3].pipeline"; without a field "tensors[3]". */
typedef struct ladei_loader_field {
  char name[64];
} ladei_loader_field;
ladei_loader_field ladei_loader_field_of(const char *list, uint64_t index, const char *field);

/* A number that is not below `count`, the number of `what`: LADE_ERR_INVALID_ARGUMENT. */
lade_status ladei_loader_number_error(const char *call, const char *field, uint64_t number, const char *what,
                                      uint64_t count);

/* A growing text. All zero is an empty one. After the first failure it takes nothing more. */
typedef struct ladei_loader_text {
  char *bytes; /* not terminated; free() it */
  size_t length, capacity;
  bool failed; /* no memory */
} ladei_loader_text;

void ladei_loader_text_put(ladei_loader_text *text, const char *bytes, size_t count);
void ladei_loader_text_put_string(ladei_loader_text *text, const char *string);
void ladei_loader_text_put_number(ladei_loader_text *text, uint64_t number);

/* A JSON string of valid UTF-8. Escapes characters as JSON demands; `ascii`: all except printable ASCII, too. */
void ladei_loader_text_put_quoted(ladei_loader_text *text, const char *string, bool ascii);

#endif /* LADE_LOADERS_TEXT_H */
