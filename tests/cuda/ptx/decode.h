/* decode.h - how a kernel's text becomes instructions: decode.cpp has names, registers and the body,
 * opcodes.cpp what each opcode wants. */
#ifndef KVA_TESTS_CUDA_PTX_DECODE_H
#define KVA_TESTS_CUDA_PTX_DECODE_H

#include "forms.h"

namespace ptx
{

class decoder
{
  public:
    decoder(const text_file &file_, kernel &own_) : file(file_), own(own_)
    {
    }
    void run(size_t entry);

  private:
    struct reg {
        operand where;
        uint8_t bytes; /* of a lane; 0: a predicate */
    };
    /* Names within braces; `%r<8>` declares a range of them, which are made when they are used. */
    struct scope {
        std::map<std::string, reg> registers;
        std::map<std::string, uint8_t> ranges;
    };
    struct label_place {
        uint32_t number, pc;
        bool known;
    };
    /* Numbers and places of special registers and of constants until all registers are known. */
    static constexpr uint32_t SPECIAL_TAG = 1u << 29, CONSTANT_TAG = 1u << 30;

    [[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));
    size_t read_header(size_t entry);
    void read_params(std::string_view list);
    void place_shared(const std::vector<statement> &body);
    void declare(const statement &directive);
    void add(const statement &statement);
    void finish();
    label_place &label(std::string_view name);
    uint32_t label_at(uint32_t number);

    reg new_register(size_t bytes);
    reg find_register(std::string_view name);
    bool is_local_name(std::string_view text);
    operand constant(uint64_t value, size_t bytes);
    uint64_t value_of(std::string_view text);
    operand operand_of(std::string_view text, size_t bytes, bool wider = false,
                       size_t *ret_bytes = nullptr);
    void add_address(std::string_view text, instr *ret, uint32_t narrow_flag);
    static std::vector<std::string_view> parts_of(std::string_view text);
    void push(std::string_view text, size_t bytes, bool wider = false, size_t *ret_bytes = nullptr)
    {
        own.operands.push_back(operand_of(text, bytes, wider, ret_bytes));
    }

    /* opcodes.cpp: what `now` says, into *ret and the operands. */
    void add_instruction(instr *ret);
    void add_table_form(const form &form, instr *ret);
    bool add_flow(instr *ret);
    void add_barrier(instr *ret);
    void add_compare(instr *ret);
    void add_select(instr *ret);
    void add_predicates(instr *ret);
    void add_parts(instr *ret);
    void add_space_cast(instr *ret);
    void add_memory(instr *ret);
    void add_atomic(instr *ret);
    void add_copy(instr *ret);
    void add_shuffle(instr *ret);
    void add_vote(instr *ret);
    void add_matrix_load(instr *ret);
    void add_transposition(instr *ret);
    void add_product(instr *ret, const matrix_form &form);
    void add_members(std::string_view text, instr *ret);
    void expect(size_t operands);
    void note_shared_access(space space, size_t bytes);

    const text_file &file;
    kernel &own;
    statement now = {};
    std::vector<std::string_view> words; /* of the opcode */
    size_t first_operand = 0;
    std::vector<scope> scopes;
    std::map<std::string, uint64_t> symbols;
    std::map<std::string, label_place> labels;
    std::map<std::string, uint32_t> forms;
    std::map<std::pair<uint64_t, size_t>, operand> constants;
    uint32_t register_end = 0, register_count = 0, constant_count = 0;
};

} // namespace ptx

#endif
