/* linear_packed.cu - linear with packed weights.
 *
 * Up to SOME_ROWS rows: a block of threads has 32 outputs and 16 rows, its warps take turns at the
 * pieces of 32 inputs, and codes become numbers of the activations' format in registers, where they
 * meet the rows: the panels' bytes are all that is read. Four pieces of a warp are always on their
 * way, the first ones before the kernel waits for its rows, as in linear_few.cu.
 *
 * Lane 4 g + t has inputs 8 t .. 8 t + 7 of a piece, and four outputs side by side: of panel g / 4,
 * from 4 (g % 4) on. So a load of 16 bytes is a lane's part of a line, and output i of the four is a
 * column of product i.
 *
 * More rows: panels are expanded to the activations' format in scratch, as many at a time as fit,
 * for cuBLAS: two bytes written and read a weight, beside SOME_ROWS and more products. Activations of
 * 32 bits take that way, too. */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/packed.cuh"

/* Every 16 rows expand a weight in registers once; in memory it costs eight times the bytes of 4
 * bits, there and back. */
#define SOME_ROWS 64u
#define THREADS   256u

/* Pieces of a warp that are on their way. */
#define TURNS 4u

/* Expanded at a time; simulated devices go through the parts of small matrices. */
#ifdef __CUDACC__
#define EXPANDED_BYTES KVA_CUDA_SCRATCH_BYTES
#else
#define EXPANDED_BYTES ((size_t)16 << 10)
#endif

/* --- a format --------------------------------------------------------------------------------- */

/* A packed format as constants. */
template <uint32_t FORMAT> struct format {
    static constexpr struct kva_packed_format row = kva_packed_table[FORMAT];
    static constexpr uint32_t low = row.low_bits, high = row.high_bits;
    static constexpr uint32_t at = 7 - (low + high); /* where codes are put in a byte */
    static constexpr uint32_t pieces = row.block_inputs / KVA_PACKED_PIECE_INPUTS;
    static constexpr uint32_t groups = row.block_inputs / row.scale_inputs;
    static constexpr uint32_t piece_bytes = (low + high) * KVA_PACKED_LINE_BYTES;
    static constexpr uint32_t block_bytes = row.head_bytes + pieces * piece_bytes;
    /* From a piece of a warp to its next one: as many pieces on as there are warps, so that it has
     * the same place in its block. */
    static constexpr uint32_t step_bytes = FEW_WARPS / pieces * block_bytes;
    /* Of a head: bytes of a scale that is no product; whether scales are products with bytes; where
     * the second two words are, the last floats or the mins, behind the first two. */
    static constexpr uint32_t word_bytes = row.head == KVA_HEAD_F32 ? 4 : 2;
    static constexpr bool has_parts = row.head >= KVA_HEAD_K_SIGNED;
    static constexpr uint32_t second_at = row.head == KVA_HEAD_F32       ? 8
                                          : row.head == KVA_HEAD_F16_MIN ? groups * 32
                                          : row.has_min                  ? 32
                                                                         : 0;
    static_assert(FEW_WARPS % pieces == 0, "a block's pieces are not spread evenly over the warps");
};

/* A lane's codes of a piece: four outputs' lines of 16 bytes, of 8 bits two. */
template <uint32_t FORMAT> struct codes {
    uint4 low[format<FORMAT>::low == 8 ? 2 : 1];
    uint4 high;
};

/* And what of the head belongs to them, as it lies there: of four outputs the scales' floats, or
 * halves of scales and of mins; bytes that those are multiplied by. */
struct heads {
    uint4 words;
    uint32_t parts[2];
};

/* Where the lane's part of its first piece is. `left`: pieces from there on. */
struct place {
    const unsigned char *codes, *words, *parts;
    int left;
};

/* --- loads ------------------------------------------------------------------------------------ */

template <uint32_t FORMAT>
static __device__ __forceinline__ place begin_at(const unsigned char *panel, uint32_t inputs)
{
    typedef format<FORMAT> of;
    const uint32_t warp = threadIdx.x / KVA_WARP, t = threadIdx.x % 4;
    const uint32_t quad = threadIdx.x % KVA_WARP / 4 % 4, piece = warp % of::pieces;
    const uint32_t line = of::low == 8 ? t * 2 : of::low == 4 ? t : t / 2;
    const uint32_t input = piece * KVA_PACKED_PIECE_INPUTS + t * KVA_VECTOR;
    const uint32_t group = input / of::row.scale_inputs;
    const uint32_t own = of::has_parts ? 0 : group; /* whose floats or halves */
    const unsigned char *block = panel + warp / of::pieces * of::block_bytes;
    place at;
    at.codes = block + of::row.head_bytes + piece * of::piece_bytes + line * KVA_PACKED_LINE_BYTES +
               quad * 16;
    at.words = block + (own * KVA_PACKED_PANEL + quad * 4) * of::word_bytes;
    at.parts = block + KVA_PACKED_LINE_BYTES + group * KVA_PACKED_PANEL + quad * 4;
    at.left = static_cast<int>((inputs + KVA_PACKED_PIECE_INPUTS - 1) / KVA_PACKED_PIECE_INPUTS) -
              static_cast<int>(warp);
    return at;
}

/* Piece `turn` of the warp from the place on, a constant. Behind the last one codes and scales stay
 * as they are, where rows are 0. */
template <uint32_t FORMAT>
static __device__ __forceinline__ void load_weights(codes<FORMAT> &to, heads &head, place at,
                                                    uint32_t turn)
{
    typedef format<FORMAT> of;
    const bool valid = at.left > static_cast<int>(turn * FEW_WARPS);
    const size_t step = static_cast<size_t>(turn) * of::step_bytes;
    const unsigned char *codes = at.codes + step;
    kva_load_once(to.low[0], codes, valid);
    if constexpr (of::low == 8)
        kva_load_once(to.low[1], codes + KVA_PACKED_LINE_BYTES, valid);
    if constexpr (of::high > 0) {
        /* Behind the lines of low bits, from the lane's own on; one line for all, or two. */
        const uint32_t t = threadIdx.x % 4;
        const int line = static_cast<int>(of::low) - static_cast<int>(of::low == 4 ? t : t / 2) +
                         static_cast<int>(of::high == 2 ? t / 2 : 0);
        kva_load_once(to.high, codes + line * static_cast<int>(KVA_PACKED_LINE_BYTES), valid);
    }
    if (!valid)
        return;
    const unsigned char *words = at.words + step, *parts = at.parts + step;
    const uint2 scales = *reinterpret_cast<const uint2 *>(words);
    head.words.x = scales.x;
    head.words.y = scales.y;
    if constexpr (of::second_at > 0) {
        const uint2 more = *reinterpret_cast<const uint2 *>(words + of::second_at);
        head.words.z = more.x;
        head.words.w = more.y;
    }
    if constexpr (of::has_parts)
        head.parts[0] = *reinterpret_cast<const uint32_t *>(parts);
    if constexpr (of::row.head == KVA_HEAD_K_MIN)
        head.parts[1] = *reinterpret_cast<const uint32_t *>(parts + of::groups * KVA_PACKED_PANEL);
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* Element i of four, a constant. */
static __device__ __forceinline__ uint32_t word_of(const uint4 &four, uint32_t i)
{
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/* Half i of two words side by side. */
static __device__ __forceinline__ float half_of(uint32_t low, uint32_t high, uint32_t i)
{
    const uint32_t word = i < 2 ? low : high;
    const kva_f16 half = {static_cast<uint16_t>(word >> i % 2 * 16)};
    return kva_to_f32(half);
}

/* Scale and min of output i of the lane's four. */
template <uint32_t FORMAT>
static __device__ __forceinline__ kva_cuda_scales scales_of(const heads &head, uint32_t i)
{
    const uint4 &words = head.words;
    if constexpr (format<FORMAT>::row.head == KVA_HEAD_F32)
        return {__uint_as_float(word_of(words, i)), 0};
    const float scale = half_of(words.x, words.y, i), min = half_of(words.z, words.w, i);
    switch (format<FORMAT>::row.head) {
    case KVA_HEAD_F16:
        return {scale, 0};
    case KVA_HEAD_F16_MIN:
        return {scale, min};
    case KVA_HEAD_K_SIGNED: /* a sign is 128 in a byte */
        return {scale * kva_byte_of(head.parts[0] ^ 0x80808080u, i, 128), 0};
    case KVA_HEAD_K_MIN:
        return {scale * kva_byte_of(head.parts[0], i, 0), -min * kva_byte_of(head.parts[1], i, 0)};
    default: /* KVA_HEAD_K_MIN_4BIT */
        return {scale * kva_byte_of(head.parts[0] & 0x0F0F0F0Fu, i, 0),
                -min * kva_byte_of(head.parts[0] >> 4 & 0x0F0F0F0Fu, i, 0)};
    }
}

/* In each byte of a word, the `BITS` bits from bit `from` on as those from bit TO on. */
template <uint32_t BITS, uint32_t TO>
static __device__ __forceinline__ uint32_t move_bits(uint32_t word, uint32_t from)
{
    return word >> from << TO & (((1u << BITS) - 1) << TO) * 0x01010101u;
}

/* The codes of inputs 8 t + 4 s .. + 3 of output i, a byte each: of fewer than 8 bits at its bits
 * from format::at on. */
template <uint32_t FORMAT>
static __device__ __forceinline__ uint32_t codes_of(const codes<FORMAT> &from, uint32_t i,
                                                    uint32_t s)
{
    typedef format<FORMAT> of;
    const uint32_t t = threadIdx.x % 4;
    if constexpr (of::low == 8) {
        return word_of(from.low[s], i);
    } else {
        const uint32_t low_at = of::low == 4 ? s * 4 : t % 2 * 4 + s * 2;
        uint32_t to = move_bits<of::low, of::at>(word_of(from.low[0], i), low_at);
        if constexpr (of::high == 1)
            to |= move_bits<1, of::at + of::low>(word_of(from.high, i), t * 2 + s);
        if constexpr (of::high == 2)
            to |= move_bits<2, of::at + of::low>(word_of(from.high, i), t % 2 * 4 + s * 2);
        return to;
    }
}

/* What makes a weight of a number that holds its code: number * scale + min. */
template <uint32_t FORMAT>
static __device__ __forceinline__ kva_cuda_scales scales_of_numbers(kva_cuda_scales scales)
{
    typedef format<FORMAT> of;
    constexpr uint32_t levels = 1u << (of::low + of::high);
    if constexpr (of::low == 8)
        return scales;
    return {scales.scale * (2 * levels),
            fmaf(scales.scale, -static_cast<float>(levels + of::row.zero), scales.min)};
}

/* Code i of four, as a number. One of b bits, fewer than 8, stands in the upper bits of the mantissa
 * of 0.5 + code / 2^(b + 1), so that an addition and a multiplication make it a weight that is off
 * by no more than a unit in the last place of the largest weight of its scale. */
template <uint32_t FORMAT>
static __device__ __forceinline__ float number_of(uint32_t four, uint32_t i)
{
    if constexpr (format<FORMAT>::low == 8)
        return kva_byte_of(four, i, format<FORMAT>::row.zero);
    return __uint_as_float(__byte_perm(four, 0x3F000000u, 0x7044u + (i << 8)));
}

/* Four codes as weights, in pairs. */
template <typename T, uint32_t FORMAT>
static __device__ __forceinline__ void weights_of(uint32_t (&to)[2], uint32_t four,
                                                  kva_cuda_scales scales)
{
    float weights[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        weights[i] = fmaf(number_of<FORMAT>(four, i), scales.scale, scales.min);
    to[0] = kva_pack<T>(weights[0], weights[1]);
    to[1] = kva_pack<T>(weights[2], weights[3]);
}

/* --- some rows -------------------------------------------------------------------------------- */

/* sums += the products of a piece; [i]: output i of each lane's four. */
template <typename T, uint32_t FORMAT>
static __device__ __forceinline__ void multiply(float (&sums)[4][4], const codes<FORMAT> &from,
                                                const heads &head, const few_inputs &rows)
{
    kva_cuda_scales scales[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        scales[i] = scales_of_numbers<FORMAT>(scales_of<FORMAT>(head, i));
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t weights[2];
            weights_of<T, FORMAT>(weights, codes_of(from, i, s), scales[i]);
            kva_mma<T>(sums[i], rows.of[s], weights[0], weights[1]);
        }
    }
}

/* Columns 2 t and 2 t + 1 of product i are outputs i of two quads side by side. */
static __device__ __forceinline__ void put_sums(few_sums<2 * FEW_OUTPUTS> &to,
                                                const float (&sums)[4][4])
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP, t = lane % 4;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float *row = to.of[warp][lane / 4 + j / 2 * FEW_HALF] + t * 8 + j % 2 * 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            row[i] = sums[i][j];
    }
}

/* The lane's panel: of two side by side, or of one of each matrix of a gated MLP. Behind the last
 * one, whose sums nobody takes, is the last one again. */
static __device__ __forceinline__ const unsigned char *
find_panel(const few_call &f, uint32_t number, uint32_t block, size_t panel_bytes)
{
    const uint32_t second = threadIdx.x % KVA_WARP / 16;
    const few_product &own = f.products[f.glu ? second : number];
    const uint32_t panel = f.glu ? block : block * 2 + second;
    const uint32_t last = (own.outputs - 1) / KVA_PACKED_PANEL;
    return static_cast<const unsigned char *>(own.weight) + min(panel, last) * panel_bytes;
}

template <typename T, uint32_t FORMAT>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    packed_kernel(const T *x, few_call f, size_t panel_bytes, uint32_t tiles)
{
    kva_begin_weights();
    __shared__ few_sums<2 * FEW_OUTPUTS> parts;
    uint32_t block = blockIdx.x / tiles;
    const uint32_t row_first = blockIdx.x % tiles * FEW_ROWS;
    const uint32_t number = few_find(f, &block);
    place at = begin_at<FORMAT>(find_panel(f, number, block, panel_bytes), f.inputs);
    codes<FORMAT> ahead[TURNS] = {};
    heads head[TURNS] = {};
#pragma unroll
    for (uint32_t i = 0; i < TURNS; i++)
        load_weights(ahead[i], head[i], at, i);
    kva_await();
    uint32_t input =
        threadIdx.x / KVA_WARP * KVA_PACKED_PIECE_INPUTS + threadIdx.x % 4 * KVA_VECTOR;
    few_rows<T> rows = few_rows_at(f, x, row_first, input);
    float sums[4][4] = {};
    for (; at.left > 0; at.left -= static_cast<int>(TURNS * FEW_WARPS)) {
#pragma unroll
        for (uint32_t i = 0; i < TURNS; i++) {
            const uint32_t from = i * FEW_WARPS * KVA_PACKED_PIECE_INPUTS;
            multiply<T>(sums, ahead[i], head[i], few_load(rows, from, input + from < f.inputs));
            load_weights(ahead[i], head[i], at, TURNS + i);
        }
        at.codes += TURNS * format<FORMAT>::step_bytes;
        at.words += TURNS * format<FORMAT>::step_bytes;
        at.parts += TURNS * format<FORMAT>::step_bytes;
        input += TURNS * FEW_WARPS * KVA_PACKED_PIECE_INPUTS;
        rows.of[0] += TURNS * FEW_WARPS * KVA_PACKED_PIECE_INPUTS;
        rows.of[1] += TURNS * FEW_WARPS * KVA_PACKED_PIECE_INPUTS;
    }
    put_sums(parts, sums);
    __syncthreads(); /* all warps' sums are there */
    few_finish<T>(f, parts, number, block * (f.glu ? 1 : 2) * FEW_OUTPUTS, row_first);
}

template <typename T, uint32_t FORMAT>
static bool launch(struct kva_device *device, const void *x, const few_call &f)
{
    const uint32_t tiles = kva_blocks(f.rows, FEW_ROWS);
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, f.glu ? "linear_glu packed" : "linear packed",
                        {few_blocks(f) * tiles, FEW_THREADS}, packed_kernel<T, FORMAT>,
                        static_cast<const T *>(x), f,
                        kva_packed_panel_bytes(&kva_packed_table[FORMAT], f.inputs), tiles);
}

template <typename T, uint32_t... FORMATS>
static bool launch_of(struct kva_device *device, const void *x, const few_call &f, uint32_t number,
                      std::integer_sequence<uint32_t, FORMATS...>)
{
    bool good = false;
    (void)((FORMATS == number && ((good = launch<T, FORMATS>(device, x, f)), true)) || ...);
    return good;
}

/* Products of some rows with matrices of one packed format. */
static void run_some(struct kva_device *device, const void *x, const few_call &f,
                     enum kva_dtype dtype)
{
    const std::make_integer_sequence<uint32_t, KVA_DTYPE_END - KVA_INT8> all;
    const uint32_t number = dtype - KVA_INT8;
    if (device->base.info.act == KVA_F16)
        (void)launch_of<kva_f16>(device, x, f, number, all);
    else
        (void)launch_of<kva_bf16>(device, x, f, number, all);
}

static bool fits(const struct kva_device *device, const struct kva_linear_args *args)
{
    return few_takes(device, args) && kva_dtype_is_packed(args->weight.dtype) &&
           args->rows <= SOME_ROWS;
}

bool kva_cuda_linear_packed_few(struct kva_device *device, const struct kva_linear_args *products,
                                uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!fits(device, &products[i]) || products[i].weight.dtype != products->weight.dtype)
            return false;
    }
    run_some(device, products->x, few_call_of(products, count, 2 * FEW_OUTPUTS),
             products->weight.dtype);
    return true;
}

bool kva_cuda_linear_packed_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    if (!fits(device, &args->gate) || !fits(device, &args->up) ||
        args->gate.weight.dtype != args->up.weight.dtype)
        return false;
    run_some(device, args->gate.x, few_glu_of(args, FEW_OUTPUTS), args->gate.weight.dtype);
    return true;
}

/* --- many rows --------------------------------------------------------------------------------- */

/* out [outputs, cols] = rows [first, first + outputs) of the matrix, one a block of threads. */
template <typename T>
static __global__ void expand_kernel(T *out, kva_cuda_packed w, uint32_t first)
{
    kva_begin();
    T *to = out + static_cast<size_t>(blockIdx.x) * w.cols;
    for (uint32_t col = threadIdx.x * 4; col < w.cols; col += blockDim.x * 4) {
        float four[4];
        kva_packed_load_four(w, first + blockIdx.x, col, four);
        for (uint32_t i = 0; i < 4 && col + i < w.cols; i++)
            to[col + i] = kva_from_f32<T>(four[i]);
    }
}

template <typename T>
static bool expand(struct kva_device *device, const struct kva_weight *weight, uint32_t first,
                   uint32_t count)
{
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, "expand weights", {count, THREADS},
                        expand_kernel<T>, static_cast<T *>(device->scratch),
                        kva_cuda_packed_of(weight), first);
}

/* The part of `args` with outputs [first, first + count), their weights expanded. */
static bool expand_part(struct kva_device *device, const struct kva_linear_args *args,
                        uint32_t first, uint32_t count, struct kva_linear_args *ret)
{
    const enum kva_dtype act = device->base.info.act;
    const size_t out_bytes = kva_dtype_bytes(args->out_f32 ? KVA_F32 : act);
    if (!KVA_BY_FORMAT(act, expand, device, &args->weight, first, count))
        return false;
    *ret = *args;
    ret->weight = {device->scratch, act, count, args->weight.cols};
    ret->out = static_cast<unsigned char *>(args->out) + first * out_bytes;
    if (args->bias.data)
        ret->bias.data = static_cast<const unsigned char *>(args->bias.data) +
                         first * kva_dtype_bytes(args->bias.dtype);
    return true;
}

bool kva_cuda_linear_packed(struct kva_device *device, const struct kva_linear_args *args,
                            kva_cuda_linear_fn *multiply)
{
    const enum kva_dtype act = device->base.info.act;
    const size_t panel_bytes =
        static_cast<size_t>(KVA_PACKED_PANEL) * args->weight.cols * kva_dtype_bytes(act);
    const uint32_t outputs = args->weight.rows;
    if (panel_bytes > KVA_CUDA_SCRATCH_BYTES) {
        kva_cuda_fail(device, "linear: %u rows of packed weights are larger than %zu bytes",
                      KVA_PACKED_PANEL, KVA_CUDA_SCRATCH_BYTES);
        return false;
    }
    const size_t panels = kva_max_size(1, EXPANDED_BYTES / panel_bytes);
    const uint32_t most = static_cast<uint32_t>(kva_min_size(outputs, panels * KVA_PACKED_PANEL));
    for (uint32_t first = 0; first < outputs; first += most) {
        struct kva_linear_args part;
        if (!expand_part(device, args, first, min(most, outputs - first), &part) ||
            !multiply(device, &part))
            return false;
    }
    return true;
}
