/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/pipeline/storage_child.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

enum { FAILED = 1, SKIPPED = 77 }; /* exit status */

static bool skipped; /* of the child */

void storage_child_skip(const char *reason) {
  fprintf(stderr, "skipped: %s\n", reason);
  skipped = true;
}

void storage_child_run(void (*body)(void *user), void *user) {
  fflush(NULL);
  pid_t child = fork();
  LADE_ASSERT_GE_INT(child, 0);
  if (child == 0) {
    body(user);
    fflush(NULL);
    _exit(lade_test_has_failed() ? FAILED : skipped ? SKIPPED : 0);
  }
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) LADE_SKIP("the child says why");
  LADE_EXPECT_EQ_INT(status, 0);
}

int storage_child_forbid(int system_call, int code) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)code & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0 ? 0 : errno;
}

int storage_child_lock_nothing(void) {
  struct rlimit nothing = {0, 0};
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  if (setrlimit(RLIMIT_MEMLOCK, &nothing) != 0 || syscall(SYS_capget, &header, data) != 0) return errno;
  for (int i = 0; i < 2; i++) {
    unsigned kept = i == CAP_TO_INDEX(CAP_IPC_LOCK) ? ~CAP_TO_MASK(CAP_IPC_LOCK) : ~0u;
    data[i].effective &= kept;
    data[i].permitted &= kept;
  }
  return syscall(SYS_capset, &header, data) == 0 ? 0 : errno;
}
