#include "tests/kernels/checkasm.h"
void check_bench(struct check *check KVA_UNUSED)
{
}
