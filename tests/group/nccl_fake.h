/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NCCL made of threads: libnccl.so.2 with the calls that group/nccl makes. Work ends in the calls that ask for it, as memory of
 * the loopback driver is memory of the process; streams are not looked at.
 */
#ifndef LADE_TESTS_GROUP_NCCL_FAKE_H
#define LADE_TESTS_GROUP_NCCL_FAKE_H

#include <stdint.h>

typedef struct nccl_fake {
  /* The n-th call of this thread from now on fails; 0: none does. */
  void (*fail)(uint32_t nth);
  /* Nothing that this thread begins from now on ends. */
  void (*hang)(void);
  uint32_t (*calls)(void); /* of this thread */
  int (*living)(void);     /* communicators */
} nccl_fake;

nccl_fake *nccl_fake_get(void);

#endif /* LADE_TESTS_GROUP_NCCL_FAKE_H */
