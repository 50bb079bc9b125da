/* ptx.h - PTX executed on the host: the device code that nvcc made of the kernels, for tests on
 * machines without a GPU.
 *
 * text.cpp reads the text, decode.cpp turns the kernel that is wanted into instructions, forms.h
 * knows what each of them does to the lanes of a warp, execute.cpp runs blocks, runtime.cpp is the
 * CUDA runtime that nvcc's objects are linked with, over the streams of tests/cuda/simt.
 *
 * A warp executes an instruction for all lanes that are at it. Lanes that part are groups, of which
 * the one with the lowest instruction runs until it meets another. What ends the program, saying
 * where (PTX line, source line, block, thread):
 *
 *   memory    an access that is not inside one allocation, one variable of shared or local memory,
 *             or not aligned to its size; more shared memory than the card has
 *   values    a branch, an address, or a store to global memory that depends on a register, or on
 *             shared or local memory, that nothing was written to
 *   races     shared memory that two threads use, one of them writing, without a barrier between
 *             (kept per warp as vector clocks); bytes that cp.async is still bringing
 *   barriers  lanes that an instruction waits for and that never come, threads that a block's
 *             barrier waits for
 *   opcodes   what is not known here
 *
 * Thread rule: one host thread at a time. */
#ifndef KVA_TESTS_CUDA_PTX_H
#define KVA_TESTS_CUDA_PTX_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ptx
{

constexpr unsigned LANES = 32;
typedef uint32_t lane_mask;
constexpr lane_mask ALL_LANES = 0xFFFFFFFFu;

struct warp;
struct instr;

/* A register: where its lanes lie in a warp's registers, and its number. A predicate is one mask;
 * other types are LANES values side by side. Constants and special registers are registers, too. */
struct operand {
    uint32_t at;
    uint32_t number;
};

typedef void instr_run(warp &w, const instr &i, lane_mask mask);

/* What the executor does besides calling `run`. */
enum class flow : uint8_t {
    NEXT,
    BRANCH,
    EXIT,
    COLLECTIVE, /* waits for the lanes in its member mask */
    BARRIER,    /* of the block */
};

struct instr {
    instr_run *run;
    const operand *ops;
    int64_t imm;     /* of an address, or what the form says */
    uint32_t aux;    /* what the form says */
    uint32_t target; /* of a branch */
    int32_t guard;   /* operand of the predicate, or -1 */
    int32_t members; /* operand of the member mask, or -1: all lanes */
    uint32_t line;   /* of the PTX */
    uint32_t form;   /* the name: kernel.forms */
    uint16_t file, source_line;
    uint8_t count; /* of a vector */
    flow kind;
    bool guard_not, branch_uniform;
};

/* A variable of shared or local memory; addresses are those of its space. */
struct variable {
    std::string name;
    uint64_t address, bytes;
};

struct param {
    std::string name;
    uint32_t offset, bytes;
};

struct text_file;

struct kernel {
    std::string name;
    const text_file *file;
    std::vector<instr> code;
    std::vector<operand> operands;
    std::vector<std::string> forms; /* names of the instructions' forms */
    std::vector<param> params;
    uint32_t param_bytes;
    uint32_t threads_max;         /* .maxntid, or what a block may have */
    std::vector<variable> shared; /* static */
    uint64_t shared_bytes;        /* of them, as a card counts */
    uint64_t dynamic_address;     /* where dynamic shared memory begins */
    uint64_t local_bytes;
    uint32_t granule; /* least access to shared memory */
    /* A warp's registers: those of the kernel, special ones, and constants, which never change. */
    uint32_t register_bytes, special_at, constants_at;
    uint32_t register_count, special_number, constant_number;
    std::vector<unsigned char> constants;
};

/* Special registers, in the order of `specials` in decode.cpp. */
enum special {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    WARPID,
    LANEMASK_EQ,
    LANEMASK_LT,
    LANEMASK_LE,
    LANEMASK_GT,
    LANEMASK_GE,
    SPECIAL_COUNT
};

/* Addresses of shared memory begin here: 0 is no one's. */
constexpr uint64_t SHARED_BASE = 1024;
/* No one's bytes between variables and behind dynamic shared memory. */
constexpr uint64_t SHARED_GAP = 64;
/* Generic addresses of shared, local and parameter memory: no host pointer is there. */
constexpr uint64_t SHARED_WINDOW = (uint64_t)0x5A << 56, LOCAL_WINDOW = (uint64_t)0x5B << 56;
constexpr uint64_t PARAM_WINDOW = (uint64_t)0x5C << 56, WINDOW_MASK = (uint64_t)0xFF << 56;
constexpr uint64_t LOCAL_BASE = 1024;

/* --- text.cpp --------------------------------------------------------------------------------- */

/* A file that nvcc -ptx wrote. */
struct text_file {
    std::string path, text;
    std::map<std::string, size_t> entries; /* where each kernel's text begins */
    std::map<unsigned, std::string> sources;
    struct shared_variable {
        std::string name;
        uint64_t align, bytes;
        bool dynamic;
    };
    std::vector<shared_variable> shared; /* of the whole file */
};

/* What a declaration of shared or local memory says: `.shared .align 4 .b8 name[32];` */
text_file::shared_variable declared(std::string_view words);

/* Bytes of a type, written as ".u32" or "u32"; 0: no such type, or a predicate. */
size_t type_bytes(std::string_view type);

uint64_t number_of(std::string_view text);

/* Ends the program if the file cannot be read. */
std::unique_ptr<text_file> read_text(const std::string &path);

/* One instruction or directive of a kernel's body. */
struct statement {
    enum { INSTRUCTION, LABEL, DIRECTIVE, OPEN, CLOSE, END } kind;
    std::string_view guard;  /* "%p1", "!%p1" or empty */
    std::string_view opcode; /* or the label, or the directive's first word */
    std::string_view rest;   /* of a directive */
    std::vector<std::string_view> operands;
    uint32_t line;
    uint16_t file, source_line;
};

/* Reads a body from behind its `{` on. */
class body_reader
{
  public:
    body_reader(const text_file &file, size_t at);
    statement next();

  private:
    void skip();
    statement directive();
    statement instruction();

    std::string_view text;
    size_t at;
    uint32_t line;
    uint16_t source_file = 0, source_line = 0;
};

/* Split at commas that are outside of brackets. */
std::vector<std::string_view> split(std::string_view text, char separator = ',');
std::string_view trim(std::string_view text);

/* --- decode.cpp ------------------------------------------------------------------------------- */

/* Ends the program at what is not known. */
std::unique_ptr<kernel> decode(const text_file &file, const std::string &name);

/* --- execute.cpp ------------------------------------------------------------------------------ */

/* All blocks of the grid (simt::grid_size and block_size), in random order. `params` are as the
 * kernel's layout says; `shared_bytes`: dynamic. */
void execute(const kernel &kernel, const unsigned char *params, size_t shared_bytes);

/* End the program: the device code is wrong, in this lane of the instruction. */
[[noreturn]] void defect(const warp &w, const instr &i, unsigned lane, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

} // namespace ptx

#endif
