/* library.cpp - the libraries that nvcc's objects open by their names: cuSOLVER is the one that
 * computes on the host (tests/cuda/simt/cusolver.cpp). */
#include "cusolver_library.h"

#include <dlfcn.h>
#include <string.h>

extern "C" __attribute__((visibility("hidden"))) void *dlopen(const char *path, int flags)
{
    typedef void *open_fn(const char *path, int flags);
    static open_fn *const open = reinterpret_cast<open_fn *>(dlsym(RTLD_NEXT, "dlopen"));
    return open(path && strstr(path, "cusolver") ? KVA_CUSOLVER_LIBRARY : path, flags);
}
