/* SPDX-License-Identifier: Apache-2.0 */
/* The opcodes of a pickle: model in pickle_reader.h. */
#include "inspect/formats/pickle_reader.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { MOST_DEPTH = 1000, LEAST_PROTOCOL = 2, MOST_PROTOCOL = 5 };

#define WORD_SIZED(name, text) {text, sizeof text - 1},
static const struct {
  const char *text;
  size_t bytes;
} words[] = {LADEI_PICKLE_WORDS(WORD_SIZED)};
_Static_assert(sizeof words / sizeof *words < 256, "a place is free, so that a search ends");

/* --- errors ----------------------------------------------------------------------------------------------------------- */

static lade_status truncated(const ladei_pickle_reader *reader) {
  return ladei_error(LADE_ERR_TRUNCATED, 0, "%s: byte %zu: the pickle ends here, within an opcode or before STOP",
                     reader->name, reader->bytes);
}

/* --- words ------------------------------------------------------------------------------------------------------------ */

static unsigned word_hash(const char *text, size_t bytes) {
  if (bytes == 0) return 0;
  const unsigned char *c = (const unsigned char *)text;
  return (unsigned)(bytes * 7 + c[0] * 31 + c[bytes - 1] * 5 + c[bytes / 2] * 17) & 255;
}

static void words_index(ladei_pickle_reader *reader) {
  for (unsigned i = 0; i < LADEI_PICKLE_WORD_COUNT; i++) {
    unsigned place = word_hash(words[i].text, words[i].bytes);
    while (reader->word_index[place] != 0) place = (place + 1) & 255;
    reader->word_index[place] = (uint8_t)(i + 1);
  }
}

static uint8_t word_of(const ladei_pickle_reader *reader, const char *text, size_t bytes) {
  unsigned place = word_hash(text, bytes);
  for (; reader->word_index[place] != 0; place = (place + 1) & 255) {
    unsigned number = reader->word_index[place] - 1u;
    if (words[number].bytes == bytes && memcmp(words[number].text, text, bytes) == 0) return (uint8_t)number;
  }
  return LADEI_PICKLE_WORD_COUNT;
}

static lade_status too_deep(const ladei_pickle_reader *reader) {
  return ladei_pickle_refuse(reader, "nested deeper than %d lists or maps", MOST_DEPTH);
}

/* --- stack and memo --------------------------------------------------------------------------------------------------- */

/* Without marks each value on the stack is within the one below it. */
static lade_status push(ladei_pickle_reader *reader, ladei_pickle_value value) {
  if (reader->stack.count >= MOST_DEPTH && reader->marks.count == 0) return too_deep(reader);
  if (reader->stack.count == reader->stack.room) {
    LADEI_TRY(ladei_pickle_machine_memory(reader, (reader->stack.room / 2 + 16) * sizeof value));
    LADEI_TRY(LADEI_INSPECT_RESERVE(&reader->stack, 1));
  }
  assert(reader->stack.count < reader->stack.room);
  reader->stack.rows[reader->stack.count++] = value;
  return LADE_OK;
}

static lade_status push_plain(ladei_pickle_reader *reader, ladei_pickle_tag tag, uint64_t integer) {
  return push(reader, (ladei_pickle_value){.tag = (uint8_t)tag, .integer = integer});
}

/* Values above the last mark, or all. */
static size_t stack_floor(const ladei_pickle_reader *reader) {
  return reader->marks.count == 0 ? 0 : reader->marks.rows[reader->marks.count - 1];
}

static lade_status pop(ladei_pickle_reader *reader, ladei_pickle_value *out) {
  assert(stack_floor(reader) <= reader->stack.count); /* M5 */
  if (reader->stack.count <= stack_floor(reader)) return ladei_pickle_refuse(reader, "nothing is left on the stack");
  *out = reader->stack.rows[--reader->stack.count];
  return LADE_OK;
}

static lade_status mark_set(ladei_pickle_reader *reader) {
  if (reader->marks.count == MOST_DEPTH) return too_deep(reader);
  assert(stack_floor(reader) <= reader->stack.count); /* M5 */
  uint32_t *mark = LADEI_INSPECT_ADD(&reader->marks);
  if (mark == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *mark = (uint32_t)reader->stack.count;
  return LADE_OK;
}

static lade_status mark_take(ladei_pickle_reader *reader, size_t *out) {
  if (reader->marks.count == 0) return ladei_pickle_refuse(reader, "the end of items that began nowhere");
  *out = reader->marks.rows[--reader->marks.count];
  assert(*out <= reader->stack.count && stack_floor(reader) <= *out); /* M5 */
  return LADE_OK;
}

static lade_status memo_put(ladei_pickle_reader *reader, uint64_t number) {
  if (reader->stack.count == 0) return ladei_pickle_refuse(reader, "nothing is on the stack to be kept");
  if (number >= reader->memo.room) {
    if (number >= reader->bytes)
      return ladei_pickle_refuse(reader, "memo number %" PRIu64 " in a file of %zu bytes", number, reader->bytes);
    size_t more = (size_t)number + 1 - reader->memo.room;
    if (more < reader->memo.room / 2) more = reader->memo.room / 2;
    LADEI_TRY(ladei_pickle_machine_memory(reader, more * sizeof *reader->memo.rows));
    LADEI_TRY(LADEI_INSPECT_RESERVE(&reader->memo, reader->memo.room - reader->memo.count + more));
  }
  while (reader->memo.count <= number) /* a place never put is NONE with a length, which no value has */
    reader->memo.rows[reader->memo.count++] = (ladei_pickle_value){.tag = LADEI_PICKLE_NONE, .length = 1};
  assert(number < reader->memo.count && reader->memo.count <= reader->memo.room);
  reader->memo.rows[number] = reader->stack.rows[reader->stack.count - 1];
  return LADE_OK;
}

static lade_status memo_get(ladei_pickle_reader *reader, uint64_t number) {
  if (number >= reader->memo.count ||
      (reader->memo.rows[number].tag == LADEI_PICKLE_NONE && reader->memo.rows[number].length != 0))
    return ladei_pickle_refuse(reader, "memo number %" PRIu64 ", which was never kept", number);
  return push(reader, reader->memo.rows[number]);
}

/* --- operands --------------------------------------------------------------------------------------------------------- */

static lade_status operand(ladei_pickle_reader *reader, unsigned bytes, uint64_t *out) {
  assert(reader->at <= reader->bytes && bytes <= sizeof *out); /* M5 */
  if (reader->bytes - reader->at < bytes) return truncated(reader);
  *out = 0;
  for (unsigned i = 0; i < bytes; i++) *out |= (uint64_t)reader->data[reader->at + i] << (8 * i);
  reader->at += bytes;
  return LADE_OK;
}

static lade_status push_uint(ladei_pickle_reader *reader, unsigned bytes) {
  uint64_t value = 0;
  LADEI_TRY(operand(reader, bytes, &value));
  return push_plain(reader, LADEI_PICKLE_INT, value);
}

static lade_status push_int32(ladei_pickle_reader *reader) {
  uint64_t value = 0;
  LADEI_TRY(operand(reader, 4, &value));
  return push_plain(reader, LADEI_PICKLE_INT, (uint64_t)(int64_t)(int32_t)(uint32_t)value);
}

/* Two's complement of up to 8 bytes, or of 9 where it is a number of 64 bits without sign. */
static lade_status push_long(ladei_pickle_reader *reader) {
  uint64_t bytes = 0, value = 0, high = 0;
  LADEI_TRY(operand(reader, 1, &bytes));
  if (bytes > 9) return ladei_pickle_refuse(reader, "an integer of %" PRIu64 " bytes; at most 8", bytes);
  LADEI_TRY(operand(reader, bytes > 8 ? 8 : (unsigned)bytes, &value));
  if (bytes == 9) LADEI_TRY(operand(reader, 1, &high));
  if (high != 0) return ladei_pickle_refuse(reader, "an integer of more than 64 bits");
  if (bytes > 0 && bytes < 8 && (value >> (8 * bytes - 1)) != 0) value |= UINT64_MAX << (8 * bytes);
  bool beyond = bytes == 9 && value > INT64_MAX;
  return push(reader, (ladei_pickle_value){.tag = LADEI_PICKLE_INT, .length = beyond, .integer = value});
}

static lade_status push_real(ladei_pickle_reader *reader) {
  uint64_t bits = 0;
  ladei_pickle_value value = {.tag = LADEI_PICKLE_REAL};
  LADEI_TRY(operand(reader, 8, &bits));
  bits = __builtin_bswap64(bits);
  memcpy(&value.real, &bits, sizeof value.real);
  return push(reader, value);
}

static lade_status push_text(ladei_pickle_reader *reader, unsigned length_bytes) {
  uint64_t length = 0;
  LADEI_TRY(operand(reader, length_bytes, &length));
  if (length > reader->bytes - reader->at) return truncated(reader);
  if (length > UINT32_MAX) return ladei_pickle_refuse(reader, "a text of %" PRIu64 " bytes", length);
  uint8_t word = word_of(reader, (const char *)reader->data + reader->at, (size_t)length);
  ladei_pickle_value value = {
      .tag = LADEI_PICKLE_TEXT, .word = word, .length = (uint32_t)length, .integer = reader->at};
  reader->at += (size_t)length;
  assert(reader->at <= reader->bytes); /* M5 */
  return push(reader, value);
}

/* --- containers ------------------------------------------------------------------------------------------------------- */

static lade_status list_new(ladei_pickle_reader *reader) {
  LADEI_TRY(ladei_pickle_machine_memory(reader, sizeof *reader->lists.rows));
  if (LADEI_INSPECT_ADD(&reader->lists) == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  return push_plain(reader, LADEI_PICKLE_LIST, reader->lists.count - 1);
}

static lade_status dict_new(ladei_pickle_reader *reader) {
  LADEI_TRY(ladei_pickle_machine_memory(reader, sizeof *reader->dicts.rows));
  if (LADEI_INSPECT_ADD(&reader->dicts) == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  return push_plain(reader, LADEI_PICKLE_DICT, reader->dicts.count - 1);
}

/* The container that stands below the values from `first` on. */
static lade_status container_below(ladei_pickle_reader *reader, size_t first, ladei_pickle_tag tag, uint64_t *out) {
  if (first <= stack_floor(reader) || reader->stack.rows[first - 1].tag != tag)
    return ladei_pickle_refuse(reader, "items for what is no %s", tag == LADEI_PICKLE_LIST ? "list" : "map");
  *out = reader->stack.rows[first - 1].integer;
  return LADE_OK;
}

static lade_status append_from(ladei_pickle_reader *reader, size_t first) {
  uint64_t list = 0;
  LADEI_TRY(container_below(reader, first, LADEI_PICKLE_LIST, &list));
  for (size_t i = first; i < reader->stack.count; i++)
    LADEI_TRY(ladei_pickle_list_append(reader, list, &reader->stack.rows[i]));
  reader->stack.count = first;
  return LADE_OK;
}

static lade_status set_from(ladei_pickle_reader *reader, size_t first) {
  uint64_t dict = 0;
  LADEI_TRY(container_below(reader, first, LADEI_PICKLE_DICT, &dict));
  if ((reader->stack.count - first) % 2 != 0) return ladei_pickle_refuse(reader, "a key without a value");
  LADEI_TRY(ladei_pickle_dict_set(reader, dict, reader->stack.rows + first, (reader->stack.count - first) / 2));
  reader->stack.count = first;
  return LADE_OK;
}

static lade_status items_end(ladei_pickle_reader *reader, lade_status (*use)(ladei_pickle_reader *, size_t)) {
  size_t mark = 0;
  LADEI_TRY(mark_take(reader, &mark));
  return use(reader, mark);
}

/* The last `count` values, without a mark. */
static lade_status items_last(ladei_pickle_reader *reader, size_t count,
                              lade_status (*use)(ladei_pickle_reader *, size_t)) {
  if (reader->stack.count - stack_floor(reader) < count)
    return ladei_pickle_refuse(reader, "nothing is left on the stack");
  return use(reader, reader->stack.count - count);
}

/* Values from `first` on become a container: it is made above them, and slides below. */
static lade_status container_around(ladei_pickle_reader *reader, size_t first,
                                    lade_status (*make)(ladei_pickle_reader *),
                                    lade_status (*use)(ladei_pickle_reader *, size_t)) {
  LADEI_TRY(make(reader));
  assert(first < reader->stack.count); /* M5: the container is above the items */
  ladei_pickle_value container = reader->stack.rows[reader->stack.count - 1];
  memmove(reader->stack.rows + first + 1, reader->stack.rows + first,
          (reader->stack.count - 1 - first) * sizeof container);
  reader->stack.rows[first] = container;
  return use(reader, first + 1);
}

static lade_status list_around(ladei_pickle_reader *reader, size_t first) {
  return container_around(reader, first, list_new, append_from);
}

static lade_status dict_around(ladei_pickle_reader *reader, size_t first) {
  return container_around(reader, first, dict_new, set_from);
}

/* A pair of integers, for example a pool's id; another tuple is as good as a list. */
static lade_status tuple_around(ladei_pickle_reader *reader, size_t first) {
  const ladei_pickle_value *items = reader->stack.rows + first;
  if (reader->stack.count - first != 2 || items[0].tag != LADEI_PICKLE_INT || items[1].tag != LADEI_PICKLE_INT)
    return list_around(reader, first);
  LADEI_TRY(ladei_pickle_machine_memory(reader, sizeof *reader->pairs.rows));
  lade_device_pool_id *pair = LADEI_INSPECT_ADD(&reader->pairs);
  if (pair == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *pair = (lade_device_pool_id){items[0].integer, items[1].integer};
  reader->stack.count = first;
  return push_plain(reader, LADEI_PICKLE_PAIR, reader->pairs.count - 1);
}

/* --- opcodes ---------------------------------------------------------------------------------------------------------- */

static lade_status run_protocol(ladei_pickle_reader *reader) {
  uint64_t version = 0;
  LADEI_TRY(operand(reader, 1, &version));
  if (version >= LEAST_PROTOCOL && version <= MOST_PROTOCOL) return LADE_OK;
  return ladei_pickle_refuse(reader, "protocol %" PRIu64 "; expected %d to %d", version, LEAST_PROTOCOL, MOST_PROTOCOL);
}

static lade_status run_frame(ladei_pickle_reader *reader) {
  uint64_t bytes = 0;
  LADEI_TRY(operand(reader, 8, &bytes));
  return bytes > reader->bytes - reader->at ? truncated(reader) : LADE_OK;
}

static lade_status run_memo(ladei_pickle_reader *reader, unsigned operand_bytes,
                            lade_status (*use)(ladei_pickle_reader *, uint64_t)) {
  uint64_t number = 0;
  LADEI_TRY(operand(reader, operand_bytes, &number));
  return use(reader, number);
}

static lade_status run_pop(ladei_pickle_reader *reader) {
  ladei_pickle_value value;
  if (reader->marks.count > 0 && reader->stack.count == stack_floor(reader)) {
    reader->marks.count--;
    return LADE_OK;
  }
  return pop(reader, &value);
}

static lade_status run_pop_mark(ladei_pickle_reader *reader) {
  size_t mark = 0;
  LADEI_TRY(mark_take(reader, &mark));
  reader->stack.count = mark;
  return LADE_OK;
}

static lade_status run_dup(ladei_pickle_reader *reader) {
  ladei_pickle_value value;
  LADEI_TRY(pop(reader, &value));
  LADEI_TRY(push(reader, value));
  return push(reader, value);
}

/* Opcodes that make more than plain data, or that no writer of such pickles uses. */
static lade_status refuse_opcode(const ladei_pickle_reader *reader, unsigned code) {
  static const struct {
    unsigned char code;
    const char *name;
  } known[] = {
      {'c', "GLOBAL"},
      {0x93, "STACK_GLOBAL"},
      {'R', "REDUCE"},
      {'b', "BUILD"},
      {'i', "INST"},
      {'o', "OBJ"},
      {0x81, "NEWOBJ"},
      {0x92, "NEWOBJ_EX"},
      {0x82, "EXT1"},
      {0x83, "EXT2"},
      {0x84, "EXT4"},
      {'P', "PERSID"},
      {'Q', "BINPERSID"},
      {0x8f, "EMPTY_SET"},
      {0x90, "ADDITEMS"},
      {0x91, "FROZENSET"},
      {0x96, "BYTEARRAY8"},
      {0x97, "NEXT_BUFFER"},
      {0x98, "READONLY_BUFFER"},
      {0x8b, "LONG4"},
      {'I', "INT"},
      {'L', "LONG"},
      {'F', "FLOAT"},
      {'S', "STRING"},
      {'V', "UNICODE"},
      {'g', "GET"},
      {'p', "PUT"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].code == code)
      return ladei_pickle_refuse(reader, "opcode %s, which a snapshot of plain data does not have", known[i].name);
  return ladei_pickle_refuse(reader, "opcode 0x%02x, which is none", code);
}

static lade_status opcode_run(ladei_pickle_reader *reader, unsigned code) {
  switch (code) {
  case 0x80: return run_protocol(reader);
  case 0x95: return run_frame(reader);
  case 'N': return push_plain(reader, LADEI_PICKLE_NONE, 0);
  case 0x88: return push_plain(reader, LADEI_PICKLE_BOOL, 1);
  case 0x89: return push_plain(reader, LADEI_PICKLE_BOOL, 0);
  case 'K': return push_uint(reader, 1);
  case 'M': return push_uint(reader, 2);
  case 'J': return push_int32(reader);
  case 0x8a: return push_long(reader);
  case 'G': return push_real(reader);
  case 0x8c:                              /* SHORT_BINUNICODE */
  case 'U':                               /* SHORT_BINSTRING, of Python 2 */
  case 'C': return push_text(reader, 1);  /* SHORT_BINBYTES */
  case 'X':                               /* BINUNICODE */
  case 'T':                               /* BINSTRING */
  case 'B': return push_text(reader, 4);  /* BINBYTES */
  case 0x8d:                              /* BINUNICODE8 */
  case 0x8e: return push_text(reader, 8); /* BINBYTES8 */
  case '}': return dict_new(reader);
  case ']':
  case ')': return list_new(reader); /* EMPTY_TUPLE */
  case '(': return mark_set(reader);
  case 'a': return items_last(reader, 1, append_from);
  case 'e': return items_end(reader, append_from);
  case 's': return items_last(reader, 2, set_from);
  case 'u': return items_end(reader, set_from);
  case 'd': return items_end(reader, dict_around);
  case 'l': return items_end(reader, list_around);
  case 't': return items_end(reader, tuple_around);
  case 0x85: return items_last(reader, 1, tuple_around);
  case 0x86: return items_last(reader, 2, tuple_around);
  case 0x87: return items_last(reader, 3, tuple_around);
  case 0x94: return memo_put(reader, reader->memo.count);
  case 'q': return run_memo(reader, 1, memo_put);
  case 'r': return run_memo(reader, 4, memo_put);
  case 'h': return run_memo(reader, 1, memo_get);
  case 'j': return run_memo(reader, 4, memo_get);
  case '0': return run_pop(reader);
  case '1': return run_pop_mark(reader);
  case '2': return run_dup(reader);
  default: return refuse_opcode(reader, code);
  }
}

lade_status ladei_pickle_run_all(ladei_pickle_reader *reader, ladei_pickle_value *out) {
  words_index(reader);
  while (reader->at < reader->bytes) {
    reader->op_at = reader->at;
    unsigned code = reader->data[reader->at++];
    if (code == '.') return pop(reader, out);
    LADEI_TRY(opcode_run(reader, code));
  }
  return truncated(reader);
}
