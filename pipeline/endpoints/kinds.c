/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/endpoints/kinds.h"

const ladei_pipe_endpoint_kind *ladei_pipe_endpoint_kind_of(int32_t number) {
#define KIND(number, name) [number] = &ladei_pipe_endpoint_##name,
  static const ladei_pipe_endpoint_kind *const kinds[] = {LADEI_PIPE_ENDPOINT_KINDS(KIND)};
#undef KIND
  return number >= 0 && (size_t)number < sizeof kinds / sizeof kinds[0] ? kinds[number] : NULL;
}
