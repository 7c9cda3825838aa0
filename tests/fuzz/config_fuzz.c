/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a configuration text, plain or as words of its language (first byte odd). Whatever it says: either it is
 * refused with a message and changes nothing, or every setting is within its documented range; and what PyTorch's variables may
 * have besides is passed over.
 */
#include <string.h>

#include "base/size.h"
#include "config/config.h"
#include "tests/fuzz/fuzz.h"

enum { TEXT_MAX = 512 };

static const char *const words[] = {
    "max_split_size_mb",
    "garbage_collection_threshold",
    "expandable_segments",
    "roundup_power2_divisions",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "backend",
    "device_max_mb",
    "pinned_wait_ms",
    "throw_on_cudamalloc_oom",
    ":",
    ",",
    "[",
    "]",
    ">",
    " ",
    "True",
    "False",
    "native",
    "0",
    "1",
    "2",
    "21",
    "64",
    "1024",
    "0.5",
    "1099511627775",
    "18446744073709551615",
    "1.",
    "-1",
    "x",
};

static void text_make(const uint8_t *data, size_t size, char text[TEXT_MAX]) {
  text[0] = '\0';
  if (size == 0) return;
  bool of_words = data[0] % 2 == 1;
  size_t length = 0;
  for (size_t i = 1; i < size && length + 40 < TEXT_MAX; i++) {
    if (of_words) {
      const char *word = words[data[i] % (sizeof words / sizeof words[0])];
      memcpy(text + length, word, strlen(word));
      length += strlen(word);
    } else {
      text[length++] = (char)data[i];
    }
  }
  text[length] = '\0';
}

static bool power_or_zero(uint64_t value) { return value == 0 || ladei_is_power_of_two(value); }

static void config_check(const ladei_config *config) {
  const lade_device_options *device = &config->device;
  FUZZ_CHECK(device->max_split_bytes % LADEI_MIB == 0 && device->max_split_bytes < UINT64_C(1) << 60);
  FUZZ_CHECK(device->max_split_bytes == 0 || device->max_split_bytes >= 21 * LADEI_MIB);
  FUZZ_CHECK(device->collection_threshold >= 0.0 && device->collection_threshold < 1.0);
  FUZZ_CHECK(device->expandable_segments <= 1 && config->pinned.sources < 16);
  FUZZ_CHECK(config->pinned.prefault_threads <= 1024);
  for (int i = 0; i < 16; i++) FUZZ_CHECK(power_or_zero(device->roundup_divisions[i]));
}

/* Names lie in the structs themselves: they are compared as texts. */
static bool config_equal(const ladei_config *a, const ladei_config *b) {
  ladei_config x = *a, y = *b;
  bool named = (x.pinned.budget_name != NULL) == (y.pinned.budget_name != NULL);
  x.pinned.budget_name = y.pinned.budget_name = NULL;
  return named && memcmp(&x, &y, sizeof x) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char text[TEXT_MAX];
  text_make(data, size, text);
  ladei_config before, config, reference, passing;
  memset(&before, 0, sizeof before);
  config = reference = passing = before;
  bool strict = ladei_config_read(text, "", LADEI_SETTINGS_ALL, NULL, &config) == LADE_OK;
  if (strict)
    config_check(&config);
  else
    FUZZ_CHECK(strncmp(lade_last_error()->text, "configuration: ", 15) == 0);
  lade_config public;
  lade_device_options options;
  lade_config_init(&public);
  lade_device_options_init(&options);
  public.device = &options;
  FUZZ_CHECK((lade_config_parse(text, &public) == LADE_OK) == strict);
  if (!strict) FUZZ_CHECK(options.max_split_bytes == 0 && options.flags == 0 && options.expandable_segments == 0);
  /* What the reference knows, lade knows too, with the same meaning. */
  if (ladei_config_read(text, "", LADEI_SETTINGS_OF_PYTORCH, NULL, &reference) == LADE_OK)
    FUZZ_CHECK(strict && config_equal(&reference, &config));
  /* With unknown keys passed over, what is understood stays understood, and nothing else is. */
  ladei_settings_skips skips = {.count = 0};
  lade_status status = ladei_config_read(text, "", LADEI_SETTINGS_ALL, &skips, &passing);
  if (strict) FUZZ_CHECK(status == LADE_OK && skips.count == 0 && config_equal(&passing, &config));
  if (!strict && status == LADE_OK)
    FUZZ_CHECK(skips.count > 0 || strchr(text, ',') != NULL); /* one at the end, a key twice */
  if (status == LADE_OK) config_check(&passing);
  for (size_t i = 0; i < skips.count && i < LADEI_SETTINGS_SKIPS_MAX; i++) {
    const ladei_settings_skip *skip = &skips.first[i];
    FUZZ_CHECK(skip->key >= text && skip->key_bytes > 0 && skip->key + skip->key_bytes <= text + strlen(text));
  }
  return 0;
}
