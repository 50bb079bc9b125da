/* amx_emulator.h - AMX on machines that have none, for tests: a handler of SIGILL that executes the
 * tile instructions in software, so that the machine code of the kernels of level amx runs as it
 * is.
 *
 * It executes ldtilecfg, sttilecfg, tilerelease, tilezero, tileloadd, tileloaddt1, tilestored,
 * tdpbf16ps, tdpbssd, tdpbsud, tdpbusd and tdpbuud as Intel documents them (kernels/cpu/amx.h says
 * what order of additions that is). What raises an exception on a processor ends the program here,
 * by abort, with a line that says what was wrong: a shape beyond the palette's limits, a tile that
 * is not configured, shapes that do not fit each other, a tile used twice in a product. An illegal
 * instruction of another kind does what it would do without the handler.
 *
 * An instruction takes a few microseconds. Loads and stores go through plain C, so that sanitizers
 * see what kernels read.
 *
 * Thread rule: install before threads start; tile state is each thread's own. */
#ifndef KVA_TESTS_KERNELS_AMX_EMULATOR_H
#define KVA_TESTS_KERNELS_AMX_EMULATOR_H

#include <stdbool.h>
#include <stdint.h>

enum amx_source {
    AMX_ABSENT,   /* neither: the level cannot run */
    AMX_NATIVE,   /* the processor's own; nothing is installed */
    AMX_EMULATED, /* the handler's */
};

/* Which it is on a machine whose CPU device has these levels. */
enum amx_source amx_source_of(uint32_t levels);

/* Makes the tile instructions work, where that can be. The first call decides; the later ones put
 * the handler back, as cmocka sets its own before each test. */
enum amx_source amx_emulator_install(void);

/* For kva_device_params: KVA_CPU_AMX where it is emulated, else 0. Installs, as above. */
uint32_t amx_emulated_levels(void);

/* What has been executed since the start or the last amx_emulator_count_reset, by all threads. */
struct amx_counts {
    uint64_t configs;
    uint64_t releases;
    uint64_t zeros;
    uint64_t loads;
    uint64_t stores;
    uint64_t bf16_products;
    uint64_t byte_products;
};

struct amx_counts amx_emulator_counts(void);
void amx_emulator_count_reset(void);

/* Threads whose tiles are configured now: 0 between kernels. */
uint32_t amx_emulator_held(void);

/* Gives up the calling thread's tiles, where a test has jumped out of a kernel. */
void amx_emulator_drop(void);

#endif
