/* The CUDA runtime that nvcc's objects ask for: which kernels they have, and launches of them. The
 * rest of it is tests/cuda/simt/streams.cpp. */
#include "machine.h"
#include "tests/cuda/simt/cuda_runtime.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <unistd.h>

#ifndef PTX_FILES
#include "ptx_files.h" /* of the build: PTX_FILES, separated by ; */
#endif

using simt::defect;

/* A compiled source: the names of its kernels, and the PTX that has the same. */
struct unit {
    std::set<std::string> names;
    const ptx::text_file *file;
};

/* What a kernel's address on the host stands for; decoded when it is first wanted. */
struct function {
    unit *own;
    std::string name;
    std::unique_ptr<ptx::kernel> kernel;
    size_t dynamic_allowed;
};

/* Filled before main, in any order. */
static std::map<const void *, function> &functions()
{
    static std::map<const void *, function> all;
    return all;
}

/* The build's file; where the environment's PTX_FOLDER has one of that name, that one: kernels that
 * were changed (mutate.py). */
static std::string path_to_read(const std::string &built)
{
    const char *folder = getenv("PTX_FOLDER");
    if (!folder)
        return built;
    std::string other = folder + built.substr(built.rfind('/'));
    return access(other.c_str(), R_OK) == 0 ? other : built;
}

static const std::vector<std::unique_ptr<ptx::text_file>> &files()
{
    static const std::vector<std::unique_ptr<ptx::text_file>> all = [] {
        std::vector<std::unique_ptr<ptx::text_file>> read;
        for (std::string_view path : ptx::split(PTX_FILES, ';'))
            read.push_back(ptx::read_text(path_to_read(std::string(path))));
        return read;
    }();
    return all;
}

/* Kernels of several sources may have the same name; the names of all of a source's are its own. */
static const ptx::text_file *file_of(unit *own)
{
    for (const std::unique_ptr<ptx::text_file> &file : files()) {
        bool same = file->entries.size() == own->names.size();
        for (const auto &entry : file->entries)
            same = same && own->names.count(entry.first);
        if (!same)
            continue;
        if (own->file)
            defect("%s and %s have kernels of the same names", own->file->path.c_str(),
                   file->path.c_str());
        own->file = file.get();
    }
    if (!own->file)
        defect("no PTX has the kernels of the source with %s", own->names.begin()->c_str());
    return own->file;
}

static function *find_function(const void *host)
{
    auto found = functions().find(host);
    if (found == functions().end())
        return nullptr;
    function &own = found->second;
    if (!own.kernel) {
        const ptx::text_file *file = own.own->file ? own.own->file : file_of(own.own);
        own.kernel = ptx::decode(*file, own.name);
    }
    return &own;
}

/* --- launches --------------------------------------------------------------------------------- */

static size_t dynamic_bytes; /* of the launch that runs */

/* The arguments are read now, as they are laid out for the kernel. */
static std::function<void()> call_of(const void *host, void *const *args)
{
    const ptx::kernel *kernel = find_function(host)->kernel.get();
    std::vector<unsigned char> params(kernel->param_bytes);
    for (size_t i = 0; i < kernel->params.size(); i++)
        memcpy(params.data() + kernel->params[i].offset, args[i], kernel->params[i].bytes);
    return [=] { ptx::execute(*kernel, params.data(), dynamic_bytes); };
}

namespace simt
{
void run_grid(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    begin_grid(grid, block, shared_bytes);
    dynamic_bytes = shared_bytes;
    kernel();
}
} // namespace simt

/* What a block may have unless the kernel is allowed more. */
static const size_t SHARED_FREE = 48 * 1024;

static size_t shared_most()
{
    cudaDeviceProp prop;
    (void)cudaGetDeviceProperties(&prop, 0); /* simt's: meson.build */
    return prop.sharedMemPerBlockOptin;
}

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args)
{
    const function *own = find_function(host);
    if (!own || config->dynamicSmemBytes >
                    std::max(own->dynamic_allowed, SHARED_FREE - own->kernel->shared_bytes))
        return cudaErrorInvalidValue;
    return simt::launch(config, host, call_of, call_of(host, args));
}

/* By the toolkit's names: those of tests/cuda/simt are for sources. */
cudaError_t allow_shared(const void *host, int attribute, int value) asm("cudaFuncSetAttribute");
cudaError_t get_attributes(cudaFuncAttributes *attributes,
                           const void *host) asm("cudaFuncGetAttributes");

cudaError_t allow_shared(const void *host, int attribute, int value)
{
    function *own = find_function(host);
    if (!own || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value + own->kernel->shared_bytes > shared_most())
        return cudaErrorInvalidValue;
    own->dynamic_allowed = (size_t)value;
    return cudaSuccess;
}

cudaError_t get_attributes(cudaFuncAttributes *attributes, const void *host)
{
    function *own = find_function(host);
    if (!own)
        return cudaErrorInvalidValue;
    attributes->sharedSizeBytes = own->kernel->shared_bytes;
    attributes->ptxVersion = 80; /* the PTX that is executed */
    return cudaSuccess;
}

/* --- what nvcc's own code calls --------------------------------------------------------------- */

void **__cudaRegisterFatBinary(void *)
{
    return reinterpret_cast<void **>(new unit());
}

void __cudaRegisterFatBinaryEnd(void **)
{
}

void __cudaUnregisterFatBinary(void **)
{
}

void __cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, uint3 *,
                            uint3 *, dim3 *, dim3 *, int *)
{
    unit *own = reinterpret_cast<unit *>(handle);
    own->names.insert(name);
    function &made = functions()[host];
    made.own = own;
    made.name = name;
    made.dynamic_allowed = 0;
}

/* Launches by <<<>>>: the module has none. */
cudaError_t __cudaGetKernel(void **, const void *)
{
    defect("a kernel is called, not launched");
}

cudaError_t __cudaLaunchKernel(void *, dim3, dim3, void **, size_t, cudaStream_t)
{
    defect("a kernel is called, not launched");
}

unsigned __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *)
{
    defect("a kernel is called, not launched");
}

} // extern "C"

/* There are no mutated sources here. */
extern const char *const simt_mutation_names[];
extern const int simt_mutation_count;
const char *const simt_mutation_names[] = {"none"};
const int simt_mutation_count = 0;
