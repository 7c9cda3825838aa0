/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child is told from its parent, with and without the kernel's help. */
#include "base/process.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

/* Linked with --wrap: a kernel that says yes to every advice and heeds none, as qemu's emulator does for programs. */
static bool advice_is_ignored;
int __real_madvise(void *address, size_t bytes, int advice);
int __wrap_madvise(void *address, size_t bytes, int advice);
int __wrap_madvise(void *address, size_t bytes, int advice) {
  return advice_is_ignored ? 0 : __real_madvise(address, bytes, advice);
}

/* Exit status of a child, and of its child, that ask: 0 if both are told apart. */
static int ask_in_descendants(const ladei_process *process) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) {
    pid_t grandchild = fork();
    if (grandchild == 0) _exit(ladei_process_is_own(process) ? 1 : 0);
    int inner = -1;
    waitpid(grandchild, &inner, 0);
    _exit(inner == 0 && !ladei_process_is_own(process) ? 0 : 1);
  }
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  return status;
}

LADE_TEST(Process, ChildrenAreToldFromTheirParent) {
  ladei_process process;
  ladei_process_take(&process);
  LADE_EXPECT(ladei_process_is_own(&process));
  LADE_EXPECT_EQ_INT(ask_in_descendants(&process), 0);
  LADE_EXPECT(ladei_process_is_own(&process)); /* the parent is unharmed */
  ladei_process_release(&process);
}

LADE_TEST(Process, ChildrenAreToldFromTheirParentOnOldKernelsToo) {
  ladei_process process;
  ladei_process_take(&process);
  ladei_process_release(&process); /* leaves what there is without the kernel's help: the number */
  LADE_EXPECT(process.mark == NULL);
  LADE_EXPECT(ladei_process_is_own(&process));
  LADE_EXPECT_EQ_INT(ask_in_descendants(&process), 0);
}

/* The page was taken for a mark that the kernel clears, and a child under the emulator for its parent. */
LADE_TEST(Process, ChildrenAreToldFromTheirParentWhereAdviceIsIgnored) {
  ladei_process process;
  advice_is_ignored = true;
  ladei_process_take(&process);
  advice_is_ignored = false;
  LADE_EXPECT(ladei_process_is_own(&process));
  LADE_EXPECT_EQ_INT(ask_in_descendants(&process), 0);
  ladei_process_release(&process);
}
