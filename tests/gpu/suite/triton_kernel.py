"""A kernel for programs.py: Triton compiles functions from a file."""

import triton
import triton.language as tl


@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 2)
