/* What llama.cpp takes for prefill and decode, at depths that nobody waits for.
 *
 *     llama_speed MODEL.gguf THREADS SECONDS prefill:TOKENS... decode:BATCH:DEPTH...
 *
 * A sequence's KV before the measurement is that of PIECE tokens over and over, put there through
 * the state calls: what is in it does not change the time. Sequences have KV of their own. A line
 * for each item: its name, the median of the times in ms, the distance of their quartiles in
 * percent, tokens/s. */
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

constexpr uint32_t PIECE = 256;   /* tokens computed to be repeated; depths are multiples */
constexpr uint32_t STEPS_MIN = 3; /* and until the seconds are over */
constexpr uint32_t STEPS_MAX = 200;

struct Speed {
    llama_model *model;
    int threads;
    double seconds;
};

/* With one thread, its processor time, so that others on the machine count little. */
double now(const Speed &speed)
{
    timespec time;
    if (speed.threads == 1 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0)
        return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

llama_context *open_context(const Speed &speed, uint32_t tokens, uint32_t sequences)
{
    llama_context_params params = llama_context_default_params();
    /* Of one sequence; sizes are padded to 256. */
    params.n_ctx = (tokens + 511) / 256 * 256 * sequences;
    params.n_seq_max = sequences;
    params.n_batch = 2048;
    params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = speed.threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified = false;
    llama_context *context = llama_init_from_model(speed.model, params);
    if (!context)
        throw std::runtime_error("no context");
    return context;
}

/* One token of each sequence at `position`, or `count` of sequence 0 from there on. */
void decode(llama_context *context, uint32_t sequences, uint32_t count, uint32_t position)
{
    llama_batch batch = llama_batch_init((int32_t)(sequences * count), 0, 1);
    for (uint32_t i = 0; i < sequences * count; i++) {
        batch.token[i] = (llama_token)(100 + (position * 31 + i * 17) % 20000);
        batch.pos[i] = (llama_pos)(position + (sequences == 1 ? i : 0));
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = (llama_seq_id)(sequences == 1 ? 0 : i);
        batch.logits[i] = sequences > 1 || i + 1 == count;
    }
    batch.n_tokens = (int32_t)(sequences * count);
    if (llama_decode(context, batch) != 0)
        throw std::runtime_error("llama_decode failed");
    llama_synchronize(context);
    llama_batch_free(batch);
}

class Reader
{
  public:
    explicit Reader(const std::vector<uint8_t> &from) : data(from)
    {
    }
    const uint8_t *take(size_t bytes)
    {
        if (data.size() - at < bytes)
            throw std::runtime_error("a state of another format");
        at += bytes;
        return data.data() + at - bytes;
    }
    template <typename T> T number()
    {
        T value;
        memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }

  private:
    const std::vector<uint8_t> &data;
    size_t at = 0;
};

template <typename T> void put(std::vector<uint8_t> &to, T value)
{
    const uint8_t *bytes = (const uint8_t *)&value;
    to.insert(to.end(), bytes, bytes + sizeof value);
}

/* The state of sequence 0, which has PIECE tokens, as one of `depth` tokens. */
std::vector<uint8_t> repeated(const std::vector<uint8_t> &state, uint32_t depth)
{
    std::vector<uint8_t> to;
    Reader from(state);
    put(to, from.number<uint32_t>()); /* magic */
    put(to, from.number<uint32_t>()); /* sequence: not looked at */
    const uint32_t streams = from.number<uint32_t>();
    put(to, streams);
    if (from.number<uint32_t>() != PIECE)
        throw std::runtime_error("a state of another size");
    put(to, depth);
    from.take(PIECE * 3 * sizeof(uint32_t)); /* position, 1, sequence */
    for (uint32_t i = 0; i < depth; i++) {
        put(to, i);
        put(to, 1u);
        put(to, 0u);
    }
    const uint32_t transposed = from.number<uint32_t>(), layers = from.number<uint32_t>();
    if (transposed)
        throw std::runtime_error("values are transposed: flash attention is off");
    put(to, transposed);
    put(to, layers);
    for (uint32_t i = 0; i < 2 * layers; i++) { /* keys of all layers, then values */
        put(to, from.number<int32_t>());
        const uint64_t row_bytes = from.number<uint64_t>();
        put(to, row_bytes);
        const uint8_t *rows = from.take(PIECE * row_bytes);
        for (uint32_t at = 0; at < depth; at += PIECE)
            to.insert(to.end(), rows, rows + PIECE * row_bytes);
    }
    for (uint32_t i = 1; i < streams; i++)
        put(to, 0u);
    return to;
}

void fill(llama_context *context, uint32_t sequences, uint32_t depth)
{
    if (depth == 0)
        return;
    decode(context, 1, PIECE, 0);
    std::vector<uint8_t> state(llama_state_seq_get_size(context, 0));
    llama_state_seq_get_data(context, state.data(), state.size(), 0);
    const std::vector<uint8_t> deep = repeated(state, depth);
    for (uint32_t i = 0; i < sequences; i++) {
        if (llama_state_seq_set_data(context, deep.data(), deep.size(), (llama_seq_id)i) == 0)
            throw std::runtime_error("llama.cpp does not take the state");
    }
}

void report(const char *name, std::vector<double> times, double tokens)
{
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    const double spread = times[times.size() * 3 / 4] - times[times.size() / 4];
    printf("%s %.2f %.1f %.2f\n", name, median * 1e3, 100 * spread / median, tokens / median);
    fflush(stdout);
}

void measure(const Speed &speed, const char *name)
{
    uint32_t first = 0, second = 0;
    std::vector<double> times;
    const bool prefill = sscanf(name, "prefill:%u", &first) == 1;
    if (!prefill && sscanf(name, "decode:%u:%u", &first, &second) != 2)
        throw std::runtime_error(std::string("what is ") + name);
    const uint32_t sequences = prefill ? 1 : first, depth = (second + PIECE - 1) / PIECE * PIECE;
    llama_context *context =
        open_context(speed, prefill ? first : depth + STEPS_MAX + 1, sequences);
    fill(context, sequences, depth);
    if (!prefill)
        decode(context, sequences, 1, depth); /* the first touches its memory */
    const double end = now(speed) + speed.seconds;
    for (uint32_t i = 0; i < STEPS_MAX && (i < (prefill ? 1 : STEPS_MIN) || now(speed) < end); i++) {
        if (prefill)
            llama_memory_clear(llama_get_memory(context), false);
        const double start = now(speed);
        decode(context, sequences, prefill ? first : 1, prefill ? 0 : depth + 1 + i);
        times.push_back(now(speed) - start);
    }
    report(name, times, prefill ? first : sequences);
    llama_free(context);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    Speed speed = {nullptr, atoi(argv[2]), atof(argv[3])};
    speed.model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!speed.model) {
        fprintf(stderr, "%s: cannot be loaded\n", argv[1]);
        return 1;
    }
    try {
        for (int i = 4; i < argc; i++)
            measure(speed, argv[i]);
    } catch (const std::exception &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    llama_model_free(speed.model);
    return 0;
}
