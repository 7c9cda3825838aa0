/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sources/servers.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

enum { NOT_INSTALLED = 77 };

extern char **environ;

static bool process_start(server *s, const char *kind, const char *option, const char *value) {
  int input[2], output[2];
  char line[32] = "";
  const char *arguments[] = {"python3", "tests/sources/servers.py", kind, s->dir.path, option, value, NULL};
  posix_spawn_file_actions_t actions;
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) return false;
  (void)posix_spawn_file_actions_init(&actions);
  (void)posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  (void)posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  int code = posix_spawnp(&s->pid, arguments[0], &actions, NULL, (char *const *)arguments, environ);
  (void)posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  s->input = input[1];
  FILE *said = fdopen(output[0], "r");
  bool good = code == 0 && fgets(line, sizeof line, said) != NULL;
  (void)fclose(said);
  s->port = good ? (int)strtol(line, NULL, 10) : 0;
  (void)snprintf(s->url, sizeof s->url, "http%s://127.0.0.1:%d", strcmp(kind, "nginx-tls") == 0 ? "s" : "", s->port);
  return good;
}

static int process_end(server *s) {
  int state = 0;
  close(s->input);
  (void)waitpid(s->pid, &state, 0);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

bool server_start(server *s, const char *kind, const char *option, const char *value) {
  if (!support_temp_dir_create(&s->dir)) return false;
  (void)chmod(s->dir.path, 0755);
  if (process_start(s, kind, option, value)) return true;
  int code = process_end(s);
  support_temp_dir_remove(&s->dir);
  if (code == NOT_INSTALLED)
    ladet_skip(__FILE__, __LINE__, "the server is not installed (tools/setup ci)");
  else
    LADE_FAIL("%s does not start: %d", kind, code);
  return false;
}

void server_kill(server *s) { (void)process_end(s); }

bool server_revive(server *s, const char *kind) {
  char port[16];
  (void)snprintf(port, sizeof port, "%d", s->port);
  bool good = process_start(s, kind, "--port", port);
  LADE_EXPECT(good);
  return good;
}

void server_stop(server *s) {
  (void)process_end(s);
  support_temp_dir_remove(&s->dir);
}

void server_file(const server *s, const char *name, size_t bytes, uint64_t seed) {
  char *path = support_temp_dir_path(&s->dir, name);
  (void)support_temp_file_write(path, bytes, seed);
  (void)chmod(path, 0644);
  free(path);
}

size_t server_log_count(const server *s, const char *words) {
  size_t bytes, count = 0;
  char *path = support_temp_dir_path(&s->dir, "log");
  char *text = support_file_read(path, &bytes);
  text = text != NULL ? realloc(text, bytes + 1) : NULL;
  if (text != NULL) text[bytes] = '\0';
  for (char *line = text; line != NULL && *line != '\0';) {
    char *end = line + strcspn(line, "\n");
    char *next = *end == '\n' ? end + 1 : end;
    *end = '\0';
    count += strstr(line, words) != NULL ? 1 : 0;
    line = next;
  }
  free(text);
  free(path);
  return count;
}

bool server_log_has(const server *s, const char *words) { return server_log_count(s, words) > 0; }

void server_environment(const char *const *variables) {
  static const char *const known[] = {"HOME",
                                      "AWS_REGION",
                                      "AWS_DEFAULT_REGION",
                                      "AWS_ENDPOINT_URL_S3",
                                      "AWS_ENDPOINT_URL",
                                      "AWS_CA_BUNDLE",
                                      "AWS_PROFILE",
                                      "AWS_CONFIG_FILE",
                                      "AWS_SHARED_CREDENTIALS_FILE",
                                      "AWS_ACCESS_KEY_ID",
                                      "AWS_SECRET_ACCESS_KEY",
                                      "AWS_SESSION_TOKEN",
                                      "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                      "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                      "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                      "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                                      "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                                      "http_proxy",
                                      "HTTP_PROXY",
                                      "https_proxy",
                                      "HTTPS_PROXY",
                                      "no_proxy",
                                      "NO_PROXY"};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) unsetenv(known[i]);
  setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
  for (; variables != NULL && *variables != NULL; variables += 2) setenv(variables[0], variables[1], 1);
}
