/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file to the device and back, with work on the device in between that waits by stream, not by thread.
 *
 * usage: copy_file_to_device RUNTIME [FILE]     RUNTIME: cuda, cpu, sim; FILE: this program's own, if not given
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lade/lade.h>

#define LADE(call) ((call) == LADE_OK ? (void)0 : fail(#call, lade_last_error()->text))

static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  exit(1);
}

static lade_ticket *submit(lade_pair *pair, lade_direction direction, lade_endpoint host, void *device, size_t bytes,
                           lade_stream after) {
  lade_transfer transfer;
  lade_ticket *ticket;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = host;
  transfer.device_memory = device;
  transfer.bytes = bytes;
  transfer.after_stream = direction == LADE_TO_HOST;
  transfer.stream = after;
  LADE(lade_pipeline_submit(lade_pair_pipeline(pair), &transfer, &ticket));
  return ticket;
}

int main(int argc, char **argv) {
  struct stat status;
  const char *file = argc == 3 ? argv[2] : argv[0];
  int fd = argc == 2 || argc == 3 ? open(file, O_RDONLY) : -1;
  if (argc != 2 && argc != 3) fail(argv[0], "usage: RUNTIME [FILE]");
  if (fd < 0 || fstat(fd, &status) != 0) fail(file, strerror(errno));
  if (status.st_size == 0) fail(file, "it is empty");
  size_t bytes = (size_t)status.st_size;
  char *back = malloc(bytes), *expected = malloc(bytes);
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  void *loaded, *result;
  LADE(lade_runtime_open(argv[1], NULL, &runtime));
  LADE(lade_pair_create(runtime, 0, NULL, &pair));
  LADE(lade_stream_create(runtime, 0, &stream));
  LADE(lade_device_alloc(lade_pair_device_allocator(pair), bytes, stream, &loaded));
  LADE(lade_device_alloc(lade_pair_device_allocator(pair), bytes, stream, &result));

  lade_ticket *down = submit(pair, LADE_TO_DEVICE, lade_endpoint_file(fd, 0, file), loaded, bytes, NULL);
  LADE(lade_stream_wait_ticket(stream, down));
  LADE(lade_copy_async(runtime, result, loaded, bytes, stream)); /* in place of a kernel */
  lade_ticket *up = submit(pair, LADE_TO_HOST, lade_endpoint_memory(back), result, bytes, stream);
  LADE(lade_ticket_wait(up, LADE_WAIT_FOREVER));
  LADE(lade_ticket_wait(down, LADE_WAIT_FOREVER)); /* its error would be the reason for bytes that are wrong */
  lade_ticket_release(down);
  lade_ticket_release(up);

  if (expected == NULL || pread(fd, expected, bytes, 0) != (ssize_t)bytes || memcmp(back, expected, bytes) != 0)
    fail(file, "what came back is not the file");
  printf("%s: %zu bytes to the device and back\n", file, bytes);

  LADE(lade_device_free(lade_pair_device_allocator(pair), loaded));
  LADE(lade_device_free(lade_pair_device_allocator(pair), result));
  LADE(lade_device_stream_retire(lade_pair_device_allocator(pair), stream));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_pair_destroy(pair, false));
  LADE(lade_runtime_close(runtime));
  free(back);
  free(expected);
  close(fd);
  return 0;
}
