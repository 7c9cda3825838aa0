/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child is told from its parent, with and without the kernel's help. */
#include "base/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

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
