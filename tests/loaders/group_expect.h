/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank should have of a tensor that its group loaded. */
#ifndef LADE_TESTS_LOADERS_GROUP_EXPECT_H
#define LADE_TESTS_LOADERS_GROUP_EXPECT_H

#include "tests/group/ranks.h"
#include "tests/loaders/fixture.h"

/* Compares a tensor's memory, whole or a slice, with the file's bytes. `index`: its number in the load. */
void group_expect_tensor(const ranks_one *one, const fixture *f, lade_safetensors *file, lade_tensor_load *load,
                         uint64_t tensor, uint64_t index);

#endif /* LADE_TESTS_LOADERS_GROUP_EXPECT_H */
