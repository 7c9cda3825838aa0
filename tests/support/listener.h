/* SPDX-License-Identifier: Apache-2.0 */
/* A listener with one callback, for the statement:  lade_device_listener_add(allocator, SUPPORT_LISTENER(track, function, &own)) */
#ifndef LADE_TESTS_SUPPORT_LISTENER_H
#define LADE_TESTS_SUPPORT_LISTENER_H

#include "lade/device.h"

#define SUPPORT_LISTENER(kind, function, pointer)                                                                      \
  (&(const lade_device_listener){.struct_size = sizeof(lade_device_listener), .user = (pointer), .kind = (function)})

#endif /* LADE_TESTS_SUPPORT_LISTENER_H */
