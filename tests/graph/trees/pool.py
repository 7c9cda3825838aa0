# SPDX-License-Identifier: Apache-2.0
"""A private pool with default settings, one stream and unlimited memory, as plain as possible.

A pool is its segments, in order of allocation, and the blocks handed out: (segment, offset) -> size. What lies between
blocks handed out is free and always merged, so nothing else is state. Sources: rounding, kinds of segments, best fit,
splitting and checkpoints of docs/formats.md and docs/pytorch-differences.md.
"""

QUANTUM = 512
SMALL_MAX = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE = 10 << 20
ROUND_LARGE = 2 << 20


def rounded(size):
    return max(QUANTUM, -(-size // QUANTUM) * QUANTUM)


def segment_size(size):
    if size <= SMALL_MAX:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class Pool:
    def __init__(self):
        self.segments = []  # (size, small)
        self.blocks = {}  # (segment, offset) -> size

    def gaps(self, number):
        """Free ranges of a segment: (offset, size)."""
        at = 0
        for (segment, offset), size in sorted(self.blocks.items()):
            if segment == number:
                if offset > at:
                    yield at, offset - at
                at = offset + size
        if at < self.segments[number][0]:
            yield at, self.segments[number][0] - at

    def alloc(self, requested):
        size = rounded(requested)
        small = size <= SMALL_MAX
        fits = [
            (length, number, offset)
            for number, (_, kind) in enumerate(self.segments)
            if kind == small
            for offset, length in self.gaps(number)
            if length >= size
        ]
        if fits:
            length, number, offset = min(fits)
        else:
            length, number, offset = segment_size(size), len(self.segments), 0
            self.segments.append((length, small))
        rest = length - size
        split = rest >= QUANTUM if small else rest > SMALL_MAX
        self.blocks[number, offset] = size if split else length
        return number, offset

    def free(self, place):
        del self.blocks[place]

    def restore(self, blocks):
        """Sets blocks of a checkpoint: each has the place and the size that it had."""
        self.blocks = dict(blocks)
        self.check()

    def check(self):
        end = (-1, 0)
        for (segment, offset), size in sorted(self.blocks.items()):
            assert (segment, offset) >= end, "blocks overlap"
            assert offset + size <= self.segments[segment][0], "a block leaves its segment"
            end = (segment, offset + size)

    def live(self):
        return [[segment, offset, size] for (segment, offset), size in sorted(self.blocks.items())]
