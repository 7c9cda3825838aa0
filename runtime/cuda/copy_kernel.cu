/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that copies many small pieces, of device memory and of pinned host memory that the device reaches.
 *
 *   warp w of W:   piece w, w + W, w + 2 W, ...
 *   piece:         head | vectors of 16 bytes of the destination | tail
 *                  source at another offset within 16 bytes: whole vectors are read, and shifted between lanes
 *
 * A warp has up to AHEAD vectors per lane under way, which hides the link's latency: some 8 blocks of 512 threads reach the speed
 * of a link of 64 GB/s (benchmarks/results, copy_pieces.json). Nothing orders the pieces of a launch.
 *
 * K1  Only bytes of the pieces are written.
 * K2  Each vector that is read has at least one byte of the piece, so it lies in the same 16 bytes of mapped memory.
 *
 * Numbers are converted by the same code as on the host (runtime/convert.h). Their sizes are arguments, so that one kernel does for all
 * pairs of types. A lane has AHEAD_NUMBERS vectors under way: more are no faster.
 *
 * tools/copy_kernel compiles this with clang for sm_75 into copy_kernel_ptx.h, which is in the repository; the driver compiles that for
 * the device. The layouts of arguments are in copy_kernel.h.
 */
#include "copy_kernel.h"

#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE __attribute__((device, always_inline)) static inline

typedef uint32_t u32;
typedef uint64_t u64;
typedef struct vector {
  u32 word[4];
} vector;

enum { LANES = 32, AHEAD = 8, AHEAD_SHIFTED = 4, AHEAD_NUMBERS = 4 };

/* ---- Memory: each byte is touched once, so the caches keep none of it ---------------------------------------------- */

DEVICE vector load16(u64 address) {
  vector v;
  __asm__ volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                   : "l"(address));
  return v;
}

DEVICE void store16(u64 address, vector v) {
  __asm__ volatile("st.global.cs.v4.u32 [%4], {%0, %1, %2, %3};" ::"r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                   "r"(v.word[3]), "l"(address)
                   : "memory");
}

DEVICE u32 load1(u64 address) {
  u32 byte;
  __asm__ volatile("ld.global.cs.u8 %0, [%1];" : "=r"(byte) : "l"(address));
  return byte;
}

DEVICE void store1(u64 address, u32 byte) {
  __asm__ volatile("st.global.cs.u8 [%1], %0;" ::"r"(byte), "l"(address) : "memory");
}

/* ---- A piece ------------------------------------------------------------------------------------------------------- */

DEVICE void copy_aligned(u64 dst, u64 src, u32 vectors, u32 lane) {
  for (u32 first = lane; first < vectors; first += LANES * AHEAD) {
    vector v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (first + LANES * k < vectors) v[k] = load16(src + (u64)(first + LANES * k) * 16);
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (first + LANES * k < vectors) store16(dst + (u64)(first + LANES * k) * 16, v[k]);
  }
}

DEVICE u32 next_lanes(u32 value) {
  u32 next;
  __asm__ volatile("shfl.sync.down.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=r"(next) : "r"(value));
  return next;
}

DEVICE u32 funnel(u32 low, u32 high, u32 bits) {
  u32 shifted;
  __asm__("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(shifted) : "r"(low), "r"(high), "r"(bits));
  return shifted;
}

/* The 16 bytes that begin `shift` (1 to 15) bytes into a, which b follows. */
DEVICE vector shifted(vector a, vector b, u32 shift) {
  u32 word[8] = {a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1], b.word[2], b.word[3]};
  vector v;
  if (shift & 8)
    for (int i = 0; i < 6; i++) word[i] = word[i + 2];
  if (shift & 4)
    for (int i = 0; i < 5; i++) word[i] = word[i + 1];
  for (int i = 0; i < 4; i++) v.word[i] = funnel(word[i], word[i + 1], (shift & 3) * 8);
  return v;
}

/* `src` is the multiple of 16 below the source's first byte. All lanes stay in the loop, as they hand each other vectors; the last
 * lane of a row reads the vector after its own itself. */
DEVICE void copy_shifted(u64 dst, u64 src, u32 vectors, u32 shift, u32 lane) {
  for (u32 first = 0; first < vectors; first += LANES * AHEAD_SHIFTED) {
    vector v[AHEAD_SHIFTED], last[AHEAD_SHIFTED];
#pragma unroll
    for (int k = 0; k < AHEAD_SHIFTED; k++) {
      u32 at = first + LANES * k + lane;
      v[k] = last[k] = (vector){{0, 0, 0, 0}};
      if (at <= vectors) v[k] = load16(src + (u64)at * 16); /* K2: of vector `vectors` too, as shift is not 0 */
      if (lane == LANES - 1 && at < vectors) last[k] = load16(src + (u64)(at + 1) * 16);
    }
#pragma unroll
    for (int k = 0; k < AHEAD_SHIFTED; k++) {
      u32 at = first + LANES * k + lane;
      vector next;
      for (int i = 0; i < 4; i++) {
        next.word[i] = next_lanes(v[k].word[i]);
        if (lane == LANES - 1) next.word[i] = last[k].word[i];
      }
      if (at < vectors) store16(dst + (u64)at * 16, shifted(v[k], next, shift));
    }
  }
}

/* Head and tail are read before the vectors and written after them, so that they cost no way over the link of their own. */
__attribute__((device, noinline)) static void copy_piece(u64 dst, u64 src, u32 bytes, u32 lane) {
  u32 head = (u32)(-dst) & 15, head_byte = 0, tail_byte = 0;
  if (head > bytes) head = bytes;
  u32 vectors = (bytes - head) / 16, tail = (bytes - head) & 15, shift = (u32)(src + head) & 15;
  if (lane < head) head_byte = load1(src + lane);
  if (lane < tail) tail_byte = load1(src + bytes - tail + lane);
  if (shift == 0)
    copy_aligned(dst + head, src + head, vectors, lane);
  else
    copy_shifted(dst + head, src + head - shift, vectors, shift, lane);
  if (lane < head) store1(dst + lane, head_byte);
  if (lane < tail) store1(dst + bytes - tail + lane, tail_byte);
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------- */

DEVICE u32 load_number(u64 address, u32 bytes) {
  u32 bits;
  if (bytes == 4)
    __asm__ volatile("ld.global.cs.u32 %0, [%1];" : "=r"(bits) : "l"(address));
  else if (bytes == 2)
    __asm__ volatile("ld.global.cs.u16 %0, [%1];" : "=r"(bits) : "l"(address));
  else
    bits = load1(address);
  return bits;
}

DEVICE void store_number(u64 address, u32 bits, u32 bytes) {
  if (bytes == 4)
    __asm__ volatile("st.global.cs.u32 [%1], %0;" ::"r"(bits), "l"(address) : "memory");
  else if (bytes == 2)
    __asm__ volatile("st.global.cs.u16 [%1], %0;" ::"r"(bits), "l"(address) : "memory");
  else
    store1(address, bits);
}

/* The numbers of a vector, stored by words where `dst` lies at one: a vector makes whole words of all types. Words of `v` move down, as
 * registers have no index. */
DEVICE void convert_vector(u64 dst, vector v, const ladei_number_format *from, const ladei_number_format *to) {
  u32 word = 0, filled = 0, full = (dst & 3) == 0 ? 32 : 8 * to->bytes;
#pragma unroll 1
  for (u32 i = 0; i < 16 / from->bytes; i++) {
    u32 bits = from->bytes == 4 ? v.word[0] : v.word[0] & ((1u << 8 * from->bytes) - 1);
    word |= number_convert(bits, from, to) << filled;
    filled += 8 * to->bytes;
    if (filled == full) {
      store_number(dst, word, full / 8);
      dst += full / 8;
      word = filled = 0;
    }
    if ((i + 1) * from->bytes % 4 == 0)
      for (int k = 0; k < 3; k++) v.word[k] = v.word[k + 1];
    else
      v.word[0] >>= 8 * from->bytes;
  }
}

/* Head and tail as in copy_piece, but up to a multiple of 16 of the source, which is the end that is far away. */
DEVICE void convert_piece(u64 dst, u64 src, u32 bytes, u32 lane, const ladei_number_format *from,
                          const ladei_number_format *to) {
  u32 count = bytes / from->bytes, head = ((u32)(-src) & 15) / from->bytes, each = 16 / from->bytes;
  if (head > count) head = count;
  u32 vectors = (count - head) / each, tail = (count - head) % each, tail_at = count - tail, head_bits = 0,
      tail_bits = 0;
  if (lane < head) head_bits = load_number(src + (u64)lane * from->bytes, from->bytes);
  if (lane < tail) tail_bits = load_number(src + (u64)(tail_at + lane) * from->bytes, from->bytes);
  for (u32 first = lane; first < vectors; first += LANES * AHEAD_NUMBERS) {
    vector v[AHEAD_NUMBERS];
#pragma unroll
    for (int k = 0; k < AHEAD_NUMBERS; k++)
      if (first + LANES * k < vectors) v[k] = load16(src + (u64)(head + (first + LANES * k) * each) * from->bytes);
#pragma unroll 1
    for (u32 i = first; i < vectors && i < first + LANES * AHEAD_NUMBERS; i += LANES) {
      convert_vector(dst + (u64)(head + i * each) * to->bytes, v[0], from, to);
      for (int k = 0; k + 1 < AHEAD_NUMBERS; k++) v[k] = v[k + 1];
    }
  }
  if (lane < head) store_number(dst + (u64)lane * to->bytes, number_convert(head_bits, from, to), to->bytes);
  if (lane < tail)
    store_number(dst + (u64)(tail_at + lane) * to->bytes, number_convert(tail_bits, from, to), to->bytes);
}

/* ---- Entries ------------------------------------------------------------------------------------------------------- */

DEVICE u32 warp_index(void) {
  return ((u32)__nvvm_read_ptx_sreg_ctaid_x() * (u32)__nvvm_read_ptx_sreg_ntid_x() +
          (u32)__nvvm_read_ptx_sreg_tid_x()) /
         LANES;
}

DEVICE u32 warp_count(void) {
  return (u32)__nvvm_read_ptx_sreg_nctaid_x() * (u32)__nvvm_read_ptx_sreg_ntid_x() / LANES;
}

DEVICE u32 lane_index(void) { return (u32)__nvvm_read_ptx_sreg_tid_x() % LANES; }

#define LIST_KERNEL(name)                                                                                              \
  KERNEL lade_##name(const name list) {                                                                                \
    for (u32 i = warp_index(); i < list.count; i += warp_count())                                                      \
      copy_piece((u64)list.dst_high[i] << 32 | list.dst[i], (u64)list.src_high[i] << 32 | list.src[i], list.bytes[i],  \
                 lane_index());                                                                                        \
  }
LIST_KERNEL(copy_list)
LIST_KERNEL(copy_short_list)

/* An id in the program's memory, which may have changed since the launch: so it is read here, and compared with the count. */
DEVICE u64 id_read(u64 ids, u32 index, bool wide) {
  u64 id;
  u32 narrow;
  if (wide) {
    __asm__ volatile("ld.global.u64 %0, [%1];" : "=l"(id) : "l"(ids + (u64)index * 8));
    return id;
  }
  __asm__ volatile("ld.global.u32 %0, [%1];" : "=r"(narrow) : "l"(ids + (u64)index * 4));
  return narrow;
}

/* A block is copied in units, each by a warp. */
#define TABLE_KERNEL(name)                                                                                             \
  KERNEL lade_##name(const name a) {                                                                                   \
    u32 units = (a.table.bytes + a.table.unit - 1) / a.table.unit;                                                     \
    u64 all = (u64)a.table.count * units;                                                                              \
    for (u64 i = warp_index(); i < all; i += warp_count()) {                                                           \
      u32 block = (u32)(i / units), at = (u32)(i % units) * a.table.unit, rest = a.table.bytes - at;                   \
      u64 to = a.table.dst_ids != 0 ? id_read(a.table.dst_ids, block, a.table.wide != 0) : a.dst_ids[block];           \
      u64 from = a.table.src_ids != 0 ? id_read(a.table.src_ids, block, a.table.wide != 0) : a.src_ids[block];         \
      if (to < a.table.dst_count && from < a.table.src_count)                                                          \
        copy_piece(a.table.dst + to * a.table.dst_stride + at, a.table.src + from * a.table.src_stride + at,           \
                   rest < a.table.unit ? rest : a.table.unit, lane_index());                                           \
    }                                                                                                                  \
  }
TABLE_KERNEL(copy_table)
TABLE_KERNEL(copy_short_table)

/* The units of all ranges are dealt out to the warps in turn. */
KERNEL lade_copy_numbers(const copy_numbers list) {
  const ladei_number_format from = list.from, to = list.to;
  u32 next = warp_index();
  for (u32 i = 0; i < list.count; i++) {
    u32 bytes = list.bytes[i], units = (bytes + list.unit - 1) / list.unit;
    for (; next < units; next += warp_count()) {
      u32 at = next * list.unit, rest = bytes - at;
      convert_piece(list.dst[i] + (u64)(at / from.bytes) * to.bytes, list.src[i] + at,
                    rest < list.unit ? rest : list.unit, lane_index(), &from, &to);
    }
    next -= units;
  }
}
