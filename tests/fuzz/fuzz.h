/* fuzz.h - one parser, any bytes.
 *
 * A fuzz target is a file fuzz_<parser>.c that defines LLVMFuzzerTestOneInput. Linked with replay.c
 * it runs in the default suite over corpus/<parser>/ and over a fixed number of seeded mutations of
 * each file there; linked with clang's -fsanitize=fuzzer (option `fuzzers`) it explores. */
#ifndef KVA_TESTS_FUZZ_H
#define KVA_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
