/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells a forked child from its parent by a page that the kernel clears on fork.
 *
 * I1  The mark is 1 in the process that took it, from take to release, and 0 in all its descendants.
 * Locks: none; the mark is written once, before others can see it.
 */
#include "base/process.h"

#include <sys/mman.h>
#include <unistd.h>

/* The kernel clears whole pages. */
static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/*
 * Asks the kernel to clear the page in children. Emulators of user programs (qemu) accept every advice and follow few,
 * so one that accepts an advice that does not exist is not believed.
 */
static bool page_wipe_on_fork(void *page) {
  return madvise(page, page_bytes(), -1) != 0 && madvise(page, page_bytes(), MADV_WIPEONFORK) == 0;
}

void ladei_process_take(ladei_process *process) {
  process->id = getpid();
  process->mark = NULL;
  void *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (!page_wipe_on_fork(page)) {
    munmap(page, page_bytes());
    return;
  }
  process->mark = page;
  atomic_init(process->mark, 1);
}

void ladei_process_release(ladei_process *process) {
  if (process->mark != NULL) munmap((void *)process->mark, page_bytes());
  process->mark = NULL;
}

bool ladei_process_compare(const ladei_process *process) { return getpid() == process->id; }
