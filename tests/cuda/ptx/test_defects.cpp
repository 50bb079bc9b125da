/* What ptx.h promises to notice: kernels of defects.ptx, each in a process of its own, which
 * has to end with the right words; the sound ones have to end well. */
#include "tests/cuda/simt/cuda_runtime.h"

#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, uint3 *,
                            uint3 *, dim3 *, dim3 *, int *);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args);
}

static const struct {
    const char *kernel;
    const char *says; /* nullptr: it is sound */
} cases[] = {
    {"sound", nullptr},
    {"no_barrier", "a race"},
    {"barrier_for_some", "never come"},
    {"lanes_apart", "never come"},
    {"unwritten_register", "never written"},
    {"unwritten_shared", "never written"},
    {"misaligned", "aligned"},
    {"misaligned_vector", "aligned"},
    {"behind_the_end", ""},
    {"behind_shared", "shared memory"},
    {"copied", nullptr},
    {"not_waited", "cp.async"},
    {"waited_for_too_few", "cp.async"},
    {"others_copies", "a race"},
    {"no_such_opcode", "opcode"},
    {"uniform_branch", "uniform"},
};

constexpr size_t COUNT = sizeof cases / sizeof cases[0];
constexpr unsigned THREADS = 64, BYTES = 1024;

static char hosts[COUNT]; /* what stands for the kernels */

static int run(size_t which, unsigned seed)
{
    simt::set_seed(seed);
    void *data = nullptr;
    cudaStream_t stream = nullptr;
    if (cudaMalloc(&data, BYTES) || cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0))
        return 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    void *args[] = {&data};
    if (cudaLaunchKernelExC(&config, &hosts[which], args) || cudaStreamSynchronize(stream))
        return 1;
    return 0;
}

static bool ends_well(size_t which, unsigned seed, std::string *ret_words)
{
    int ends[2], code = 0;
    if (pipe(ends))
        return false;
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        _exit(run(which, seed));
    }
    close(ends[1]);
    char words[512];
    for (ssize_t got; (got = read(ends[0], words, sizeof words)) > 0;)
        ret_words->append(words, (size_t)got);
    close(ends[0]);
    return child > 0 && waitpid(child, &code, 0) == child && code == 0;
}

int main()
{
    void **handle = __cudaRegisterFatBinary(nullptr);
    for (size_t i = 0; i < COUNT; i++)
        __cudaRegisterFunction(handle, &hosts[i], nullptr, cases[i].kernel, 0, nullptr, nullptr,
                               nullptr, nullptr, nullptr);
    int failed = 0;
    for (size_t i = 0; i < COUNT; i++) {
        const char *says = cases[i].says;
        for (unsigned seed = 1; seed <= 5; seed++) {
            std::string words;
            const bool well = ends_well(i, seed, &words);
            if (well == !says && (!says || words.find(says) != std::string::npos))
                continue;
            printf("FAILED %s, seed %u: %s\n", cases[i].kernel, seed,
                   words.empty() ? "nothing was noticed" : words.c_str());
            failed++;
        }
    }
    printf("%zu kernels, %d failed\n", COUNT, failed);
    return failed ? 1 : 0;
}
