/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First process of the virtual machine of tests/numa_vm/run: mounts what the tests need, runs the commands in
 * /tests.list one after the other, says how each ended, and powers off.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int command_run(char *line) {
  char *words[64];
  size_t count = 0;
  for (char *word = strtok(line, " \n"); word != NULL && count < 63; word = strtok(NULL, " \n")) words[count++] = word;
  words[count] = NULL;
  if (count == 0) return 0;
  int status = 0;
  pid_t child = fork();
  if (child == 0) {
    execv(words[0], words);
    perror(words[0]);
    _exit(127);
  }
  waitpid(child, &status, 0);
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  printf("VM-EXIT %d %s\n", code, words[0]);
  return code;
}

int main(void) {
  mount("proc", "/proc", "proc", 0, NULL);
  mount("sysfs", "/sys", "sysfs", 0, NULL);
  mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
  mkdir("/dev/shm", 01777);
  mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
  mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
  setenv("LD_LIBRARY_PATH", "/lib", 1);
  setvbuf(stdout, NULL, _IOLBF, 0);
  FILE *list = fopen("/tests.list", "r");
  char line[1024];
  int failures = list == NULL;
  while (list != NULL && fgets(line, sizeof line, list) != NULL) failures += command_run(line) != 0;
  printf("VM-RESULT %s\n", failures == 0 ? "PASS" : "FAIL");
  fflush(stdout);
  sync();
  reboot(RB_POWER_OFF);
  return 0;
}
