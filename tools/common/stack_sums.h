/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in use by call stack, of one snapshot or of two. Stacks are equal where their frames say the same. */
#ifndef LADE_TOOLS_COMMON_STACK_SUMS_H
#define LADE_TOOLS_COMMON_STACK_SUMS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lade/inspect.h"

typedef struct stack_sum {
  char *text; /* a line for each frame, innermost first, without control characters; "(no stack)\n" */
  int64_t before_bytes, after_bytes; /* asked for, in blocks handed out */
  int64_t before_count, after_count;
} stack_sum;

typedef struct stack_sums {
  stack_sum *rows; /* the largest change of bytes first */
  size_t count, room;
} stack_sums;

/* As many as an option may ask for. */
enum { STACK_SUMS_MOST = 1000000000 };

/* `before` may be NULL. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status stack_sums_create(const lade_snapshot *before, const lade_snapshot *after, stack_sums *out);
void stack_sums_destroy(stack_sums *sums);

/* Its growth in bytes. */
int64_t stack_sum_change(const stack_sum *sum);

/* Its lines, each after `indent`. */
void stack_sum_print(FILE *out, const stack_sum *sum, const char *indent);

#endif /* LADE_TOOLS_COMMON_STACK_SUMS_H */
