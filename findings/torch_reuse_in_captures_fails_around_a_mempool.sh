#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# PyTorch 2.11 with graph_capture_record_stream_reuse:True: a capture within which torch.cuda.use_mem_pool() is entered and left ends with a
# RuntimeError of the allocator, and without that setting it does not.
# Exit status: 0 as described; 1 it has changed; 77 no GPU, or the packages were not fetched.
set -u
nvidia-smi >/dev/null 2>&1 || exit 77
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" --disable-pip-version-check install --quiet torch==2.11.0 numpy==2.4.6 || exit 77
cat >"$folder/capture.py" <<'END'
import torch


def capture():
    at = "the first tensor"
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    try:
        with torch.cuda.graph(graph):
            first = torch.empty(3 << 20, dtype=torch.uint8, device="cuda").zero_()
            at = "the pool's tensor"
            with torch.cuda.use_mem_pool(pool):
                kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda").zero_()
            at = "the free"
            del first
            at = "the last tensor"
            last = torch.empty(3 << 20, dtype=torch.uint8, device="cuda").zero_()
            at = "the end"
        return "captured"
    except RuntimeError as error:
        return f"RuntimeError in {at}: {str(error).splitlines()[0]}"


print(capture())
END
for setting in False True; do
  said[${#said[@]}]=$(PYTORCH_ALLOC_CONF=graph_capture_record_stream_reuse:$setting "$folder/venv/bin/python" "$folder/capture.py" 2>/dev/null)
  echo "torch 2.11.0, graph_capture_record_stream_reuse:$setting: ${said[-1]}"
done
echo "The setting, which is about when blocks are used again, has the allocator fail in a capture around a MemPool."
[ "${said[0]}" = captured ] && [[ ${said[1]} == *"stream_get_capture_info(stream)"* ]]
