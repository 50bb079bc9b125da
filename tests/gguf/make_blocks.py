"""Writes data/blocks.bin: random blocks of every quantised format, and the floats that the gguf package makes of them.

    pip install gguf numpy; python3 tests/gguf/make_blocks.py

For each format: its number, blocks, bytes (u32 each), the blocks, then the floats (f32, as many as the blocks have).
Scales are drawn so that no float overflows; the last block of each format is all ones bits but for its scales.
"""

import pathlib
import struct

import gguf
import numpy as np

FORMATS = {  # name: bytes where 16-bit scales stand in a block
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}
BLOCKS = {32: 9, 256: 3}


def make(name, scales, random):
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    count = BLOCKS[values]
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[-1] = 255
    for at in scales:
        # One subnormal scale, one zero, one negative: what reading 16-bit floats must get right.
        halves = random.normal(0, 0.1, count).astype(np.float16)
        halves[0] = np.float16(3e-7)
        halves[1] = np.float16(-0.0) if at == scales[0] else np.float16(-0.25)
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(count, 2)
    floats = gguf.quants.dequantize(blocks, kind).astype(np.float32)
    assert floats.size == count * values and np.isfinite(floats).all()
    return struct.pack("<III", int(kind), count, size) + blocks.tobytes() + floats.tobytes()


def main():
    random = np.random.default_rng(20)
    data = b"".join(make(name, scales, random) for name, scales in FORMATS.items())
    path = pathlib.Path(__file__).resolve().parent / "data" / "blocks.bin"
    path.write_bytes(data)
    print(path, len(data))


if __name__ == "__main__":
    main()
