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

static void config_check(const lade_config *config) {
  FUZZ_CHECK(config->max_split_size_mb == 0 ||
             (config->max_split_size_mb >= 21 && config->max_split_size_mb < UINT64_C(1) << 40));
  FUZZ_CHECK(config->garbage_collection_threshold >= 0.0 && config->garbage_collection_threshold < 1.0);
  FUZZ_CHECK(config->expandable_segments <= 1 && config->release_lock_on_cudamalloc <= 1);
  FUZZ_CHECK(config->pinned_use_cuda_host_register <= 2);
  FUZZ_CHECK(config->pinned_num_register_threads <= 128 && power_or_zero(config->pinned_num_register_threads));
  for (int i = 0; i < 16; i++) FUZZ_CHECK(power_or_zero(config->roundup_power2_divisions[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char text[TEXT_MAX];
  text_make(data, size, text);
  lade_config config;
  lade_config_init(&config);
  const lade_config before = config;
  if (lade_config_parse(text, &config) == LADE_OK) {
    config_check(&config);
  } else {
    FUZZ_CHECK(memcmp(&config, &before, sizeof config) == 0);
    FUZZ_CHECK(strncmp(lade_last_error()->text, "configuration: ", 15) == 0);
  }
  /* What the reference knows, lade knows too, with the same meaning. */
  lade_config reference = before;
  if (ladei_config_parse_reference(text, &reference) == LADE_OK)
    FUZZ_CHECK(memcmp(&reference, &config, sizeof config) == 0);
  /* With unknown keys passed over, what is understood stays understood, and nothing else is. */
  ladei_settings_skips skips = {.count = 0};
  lade_config passing = before;
  lade_status status =
      ladei_settings_read(ladei_config_tables, ladei_config_table_count, text, false, &skips, &passing);
  bool strict = memcmp(&config, &before, sizeof config) != 0 || lade_config_parse(text, &config) == LADE_OK;
  if (strict) FUZZ_CHECK(status == LADE_OK && skips.count == 0 && memcmp(&passing, &config, sizeof config) == 0);
  if (!strict && status == LADE_OK)
    FUZZ_CHECK(skips.count > 0 || strchr(text, ',') != NULL); /* one at the end, a key twice */
  if (status == LADE_OK) config_check(&passing);
  for (size_t i = 0; i < skips.count && i < LADEI_SETTINGS_SKIPS_MAX; i++) {
    const ladei_settings_skip *skip = &skips.first[i];
    FUZZ_CHECK(skip->key >= text && skip->key_bytes > 0 && skip->key + skip->key_bytes <= text + strlen(text));
  }
  return 0;
}
