# SPDX-License-Identifier: Apache-2.0
"""Parts of a tensor in a file: which ranges of bytes an index means.

    index --normalise--> one (start, stop, step) for each dimension --> ranges, in the order of the part's elements

Texts of errors are those of the ``safetensors`` package. Negative bounds of slices, which it does not take, mean what they do in NumPy.
For torch, that package leaves the index to torch: `torch_index`. Elements that torch packs, two of F4 into one of its own, are counted
here as the file has them: `packed_index` makes an index of packed ones.
"""

import collections
import itertools
import numbers
import operator

# Up to so many ranges are read each for itself. Beyond it, what lies around them is read where that is not much more.
_RANGES_FEW = 1024
_RANGES_MOST = 1 << 20
_AROUND_TIMES = 8

# ranges: an iterable of (first byte, bytes), `bytes` in all. shape: of the part. Where `inner` is not None, the one range has the shape
# `around`, and the part is around[inner].
Plan = collections.namedtuple("Plan", "ranges bytes shape around inner")

_BOUNDARY = "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, this is invalid."


def _text(item):
    if not isinstance(item, slice):
        return str(item)
    start, stop = ("" if bound is None else str(bound) for bound in (item.start, item.stop))
    return f"{start}:{stop}" + ("" if item.step in (None, 1) else f":{item.step}")


def _items(index, rank, error):
    """One item for each dimension that the index names: ints and slices of ints, the ellipsis replaced."""
    if isinstance(index, list):
        if index:
            raise error("Non empty lists are not implemented")
        index = (slice(0, 0),)
    items = index if isinstance(index, tuple) else (index,)
    if sum(item is Ellipsis for item in items) > 1:
        raise error("Only one ellipsis (...) is allowed in slice index")
    out = []
    for position, item in enumerate(items):
        if item is Ellipsis:
            out += [slice(None)] * (rank - len(items) + 1)
        elif isinstance(item, slice):
            out.append(slice(*(None if bound is None else operator.index(bound) for bound in (item.start, item.stop, item.step))))
        else:
            try:
                out.append(operator.index(item))
            except TypeError:
                raise error(f"Unsupported slice index at position {position}: expected slice, int, or ellipsis") from None
    return out


def _steps(items, shape, error):
    """(start, stop, step, whether the dimension stays) for each dimension."""

    def fault(what):
        parts = ", ".join(_text(item) for item in items)
        return error(f"Error during slicing [{parts}] with shape {list(shape)}: {what}")

    def outside(position, number):
        return fault(f"index {number} out of bounds for tensor dimension #{position} of size {shape[position]}")

    steps = []
    for position, item in enumerate(items):
        extent = shape[position] if position < len(shape) else 0
        if isinstance(item, slice):
            if item.step is not None and item.step < 1:
                raise error(f"Slice step must be a positive integer, got {item.step}")
        elif item < 0 and position < len(shape):
            if item < -extent:
                raise error(f"Invalid index {item} for dimension {position} of size {extent}")
            items[position] = item + extent
    if len(items) > len(shape):
        raise fault("more slicing indexes than dimensions in tensor")
    for position, item in enumerate(items):
        extent = shape[position]
        if not isinstance(item, slice):
            if item >= extent:
                raise outside(position, item)
            steps.append((item, item + 1, 1, False))
            continue
        start, stop = (bound if bound is None or bound >= 0 else max(bound + extent, 0) for bound in (item.start, item.stop))
        start, stop = start or 0, extent if stop is None else stop
        if start >= extent and extent > 0:
            raise outside(position, start)
        if stop > extent:
            raise outside(position, stop - 1)
        steps.append((start, max(start, stop), item.step or 1, True))
    return steps + [(0, extent, 1, True) for extent in shape[len(items):]]


def _runs(steps, shape):
    """Number of leading dimensions to go through one by one: behind them, the part is one run of elements."""
    outer = len(shape)
    while outer > 0:
        start, stop, step, _ = steps[outer - 1]
        if step != 1 and stop - start > step:
            break
        outer -= 1
        if not (start == 0 and stop == shape[outer] and step == 1):
            break
    return outer


def one_part(index, shape, error):
    """The part of a tensor that an index means, as ((begin, end, dimension) or None for all, shape of the part).

    Refuses an index that cuts more than one dimension, or takes every other element of one.
    """
    steps = _steps(_items(index, len(shape), error), shape, error)
    cut = [(start, stop, dim) for dim, (start, stop, step, _) in enumerate(steps) if (start, stop, step) != (0, shape[dim], 1)]
    if len(cut) > 1 or any(step != 1 for _, _, step, _ in steps):
        raise error(f"index {index} of shape {list(shape)} cuts more than one dimension, or has steps; expected one range of one dimension")
    return cut[0] if cut else None, tuple(stop - start for start, stop, _, stays in steps if stays)


def torch_index(torch, index, shape):
    """An index that torch takes for a tensor of that shape, as one of ints and slices within it; None where it has other parts.

    Raises what torch raises.
    """
    items = index if isinstance(index, tuple) else (index,)
    named = [item for item in items if item is not Ellipsis]
    is_plain = all(isinstance(item, (slice, numbers.Integral)) and not isinstance(item, bool) for item in named)
    if not is_plain or len(named) < len(items) - 1:
        return None
    torch.empty(shape, dtype=torch.uint8, device="meta")[index]
    first = len(items) if len(named) == len(items) else next(i for i, item in enumerate(items) if item is Ellipsis)
    whole = [slice(None)] * (len(shape) - len(named))
    out = []
    for item, extent in zip(named[:first] + whole + named[first:], shape):
        if isinstance(item, slice):
            start, stop, step = item.indices(extent)
            out.append(slice(start, stop, step) if start < stop else slice(0, 0))
        else:
            out.append(operator.index(item))
    return tuple(out)


def _dimensions(torch, item):
    """How many dimensions of a tensor an item of an index stands for; the ellipsis apart."""
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, list):
        item = torch.as_tensor(item)
    kind = str(getattr(item, "dtype", "")).removeprefix("torch.")
    return len(item.shape) if kind in ("bool", "uint8") and hasattr(item, "shape") else 1


def _packed_item(torch, item, extent, pack, error):
    """What stands for a dimension of packed elements in place of an item for one of `extent` elements."""
    if isinstance(item, slice):
        start, stop, step = item.indices(extent)
        if start >= stop:
            return slice(0, 0)
        if step == 1 and start % pack == 0 and stop % pack == 0:
            return slice(start // pack, stop // pack)
    elif isinstance(item, list) and torch.as_tensor(item).numel() == 0:
        return item
    raise error(_BOUNDARY)


def packed_index(torch, index, shape, pack, error):
    """An index that torch takes for a tensor of that shape, as one for the tensor whose last dimension has one element for `pack` of them.

    Of the last dimension there are slices of whole packed elements alone. Lists that torch may take for a tuple are refused.
    """
    if isinstance(index, list) and not all(isinstance(item, int) for item in index):
        raise error("Unsupported slice index: a list of other things than ints and bools; expected a tuple of the parts")
    items = list(index) if isinstance(index, tuple) else [index]
    counts = [0 if item is Ellipsis else _dimensions(torch, item) for item in items]
    position, last = 0, len(shape) - 1
    for i, item in enumerate(items):
        count = len(shape) - sum(counts) if item is Ellipsis else counts[i]
        if item is not Ellipsis and position <= last < position + count:
            items[i] = _packed_item(torch, item, shape[last], pack, error)
        position += count
    return tuple(items)


def plan(index, shape, bits, error, gathers=True):
    """The plan for ``tensor[index]`` of a tensor of that shape and that many bits an element. ``error(text)`` makes what is raised.

    Where `gathers` is False, parts cannot be taken of what was read: all ranges are the part's own, however many they are.
    """
    items = _items(index, len(shape), error)
    steps = _steps(items, shape, error)
    lengths = [len(range(start, stop, step)) for start, stop, step, _ in steps]
    part = tuple(length for length, row in zip(lengths, steps) if row[3])
    strides = [1] * len(shape)
    for position in range(len(shape) - 1, 0, -1):
        strides[position - 1] = strides[position] * shape[position]
    if 0 in lengths:
        return Plan([], 0, part, None, None)
    outer = _runs(steps, shape)
    count = 1
    for length in lengths[:outer]:
        count *= length
    elements = 1
    for length in lengths[outer:]:
        elements *= length
    first = sum(row[0] * stride for row, stride in zip(steps, strides))
    odd = any(length > 1 and (row[2] * stride * bits) % 8 for row, stride, length in zip(steps[:outer], strides, lengths))
    if odd or (first * bits) % 8 or (elements * bits) % 8:
        raise error(_BOUNDARY)
    # What lies around: whole rows of the first dimension.
    begin, end = (steps[0][0], steps[0][0] + (lengths[0] - 1) * steps[0][2] + 1) if shape else (0, 1)
    row = strides[0] if shape else 1
    around = (end - begin) * row
    if gathers and (count > _RANGES_MOST or (count > _RANGES_FEW and around <= _AROUND_TIMES * count * elements)):
        inner = tuple(slice(start, stop, step) for start, stop, step, _ in steps[1:])
        return Plan([(begin * row * bits // 8, around * bits // 8)], around * bits // 8, part, (end - begin, *shape[1:]),
                    (slice(None, None, steps[0][2]), *inner))
    offsets = [[(start + i * step) * stride for i in range(length)]
               for (start, _, step, _), length, stride in zip(steps[:outer], lengths, strides)]
    tail = sum(row[0] * stride for row, stride in zip(steps[outer:], strides[outer:]))
    each = elements * bits // 8
    ranges = (((sum(place) + tail) * bits // 8, each) for place in itertools.product(*offsets))
    return Plan(ranges, count * each, part, None, None)
