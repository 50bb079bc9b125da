/* xgrammar.cc - the fence around the grammar library: exceptions, time and memory.
 *
 * The library knows no limits, but it allocates all the time: operator new, which a program may
 * replace, is where its calls are ended. Only threads inside a fence are concerned. The library
 * writes messages in destructors that must not throw; those are short, so that a limit refuses
 * allocations of some size first, and small ones only when it is passed twice over. Streams swallow
 * what is thrown inside them: what counts is that the fence was tripped, not that something came
 * out of it. */
#include "text/grammar/xgrammar.h"

#include "text/grammar/automaton.h"

#include "json_schema_converter.h"
#include "support/logging.h"

#include <dlpack/dlpack.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xgrammar/xgrammar.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace
{

/* Allocations between two looks at the clock. */
constexpr unsigned clock_period = 64;
/* Smaller ones are refused at twice the limit only. */
constexpr size_t small_bytes = 1024;

/* Of processor time for masks that are made with a grammar. */
constexpr uint64_t prepare_ns = 25 * 1000 * 1000;

struct fence_state {
    bool armed;
    bool warned; /* the library has said that it leaves something out */
    kva_xg_status tripped;
    unsigned until_clock;
    int64_t held;
    int64_t held_max; /* 0: none */
    uint64_t begun_ns;
    uint64_t time_ns; /* 0: none */
    uint64_t spent_ns;
    char warning[320];
};

thread_local fence_state fence;

uint64_t now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

/* Whether `used` passes the limit, for an allocation of this size. */
template <typename number> bool passes(number used, number limit, size_t bytes)
{
    return limit > 0 && (used > 2 * limit || (used > limit && bytes >= small_bytes));
}

bool refuse(size_t bytes)
{
    if (passes<int64_t>(fence.held + int64_t(bytes), fence.held_max, bytes)) {
        fence.tripped = KVA_XG_MEMORY;
        return true;
    }
    if (fence.time_ns == 0)
        return false;
    if (fence.until_clock-- == 0 || bytes >= small_bytes) {
        fence.until_clock = clock_period;
        fence.spent_ns = now_ns() - fence.begun_ns;
    }
    if (!passes<uint64_t>(fence.spent_ns, fence.time_ns, bytes))
        return false;
    fence.tripped = KVA_XG_TIME;
    return true;
}

void *take(size_t bytes)
{
    if (fence.armed && refuse(bytes))
        return nullptr;
    void *memory = malloc(bytes ? bytes : 1);
    if (memory && fence.armed)
        fence.held += int64_t(malloc_usable_size(memory));
    return memory;
}

void give(void *memory)
{
    if (memory && fence.armed)
        fence.held -= int64_t(malloc_usable_size(memory));
    free(memory);
}

void say(kva_xg_why *why, const char *text)
{
    if (why)
        snprintf(why->text, sizeof(why->text), "%s", text);
}

/* Runs `call` inside the fence. */
template <typename function>
kva_xg_status fenced(const kva_xg_limits *limits, kva_xg_why *why, function call)
{
    fence = fence_state{};
    fence.held_max = limits ? int64_t(limits->bytes) : 0;
    fence.time_ns = limits ? limits->time_ns : 0;
    fence.begun_ns = fence.time_ns ? now_ns() : 0;
    fence.armed = true;
    kva_xg_status status = KVA_XG_OK;
    char reason[sizeof(why->text)] = "";
    try {
        status = call();
    } catch (const std::bad_alloc &) {
        status = KVA_XG_MEMORY;
    } catch (const std::exception &error) {
        status = KVA_XG_REFUSED;
        const auto *logged = dynamic_cast<const xgrammar::LogFatalError *>(&error);
        snprintf(reason, sizeof(reason), "%s",
                 logged ? logged->std::runtime_error::what() : error.what());
    } catch (...) {
        status = KVA_XG_REFUSED;
    }
    fence.armed = false;
    if (fence.tripped != KVA_XG_OK)
        return fence.tripped;
    if (status == KVA_XG_REFUSED)
        say(why, reason);
    if (status == KVA_XG_OK && fence.warned) {
        say(why, fence.warning);
        return KVA_XG_REFUSED;
    }
    return status;
}

xgrammar::Grammar read_source(const kva_xg_source *source)
{
    const std::string text(source->text, source->length);
    switch (source->kind) {
    case KVA_XG_SCHEMA:
        if (source->xml)
            return xgrammar::Grammar::FromEBNF(xgrammar::JSONSchemaToEBNF(
                text, true, std::nullopt, std::nullopt, source->strict, int(source->whitespace_max),
                xgrammar::JSONFormat::kQwenXML));
        return xgrammar::Grammar::FromJSONSchema(text, true, std::nullopt, std::nullopt,
                                                 source->strict, int(source->whitespace_max));
    case KVA_XG_REGEX:
        return xgrammar::Grammar::FromRegex(text);
    case KVA_XG_EBNF:
    case KVA_XG_TAGS:
        break;
    }
    return xgrammar::Grammar::FromEBNF(text);
}

xgrammar::Grammar read_tags(const kva_xg_source *source, const xgrammar::TokenizerInfo &info)
{
    auto made =
        xgrammar::Grammar::FromStructuralTag(std::string(source->text, source->length), info);
    if (auto *grammar = std::get_if<xgrammar::Grammar>(&made))
        return *grammar;
    throw std::runtime_error(std::visit([](const auto &error) { return std::string(error.what()); },
                                        std::get<xgrammar::StructuralTagError>(made)));
}

} // namespace

/* --- what a program may replace -------------------------------------------------------------- */

void *operator new(size_t bytes)
{
    void *memory = take(bytes);
    if (!memory)
        throw std::bad_alloc();
    return memory;
}

void *operator new[](size_t bytes)
{
    return operator new(bytes);
}

void *operator new(size_t bytes, const std::nothrow_t &) noexcept
{
    return take(bytes);
}

void *operator new[](size_t bytes, const std::nothrow_t &) noexcept
{
    return take(bytes);
}

void operator delete(void *memory) noexcept
{
    give(memory);
}

void operator delete[](void *memory) noexcept
{
    give(memory);
}

void operator delete(void *memory, size_t) noexcept
{
    give(memory);
}

void operator delete[](void *memory, size_t) noexcept
{
    give(memory);
}

void operator delete(void *memory, const std::nothrow_t &) noexcept
{
    give(memory);
}

void operator delete[](void *memory, const std::nothrow_t &) noexcept
{
    give(memory);
}

namespace xgrammar
{

void LogFatalImpl(const std::string &file, int line, const std::string &message)
{
    throw LogFatalError(file, line, message);
}

/* What the library leaves out of a schema, it says in warnings. */
void LogMessageImpl(const std::string &, int, int level, const std::string &message)
{
    if (level != XGRAMMAR_LOG_LEVEL_WARNING || fence.warned)
        return;
    fence.warned = true;
    snprintf(fence.warning, sizeof(fence.warning), "%s", message.c_str());
}

} // namespace xgrammar

/* --- vocabularies and grammars --------------------------------------------------------------- */

struct kva_xg_vocab {
    xgrammar::TokenizerInfo info;
    std::shared_ptr<const kva::token_lengths> lengths;
};

struct kva_xg_grammar {
    kva_xg_grammar(const xgrammar::CompiledGrammar &made,
                   const std::shared_ptr<const kva::token_lengths> &lengths)
        : compiled(made), automaton(made, lengths),
          vocab_size(uint32_t(made.GetTokenizerInfo().GetVocabSize()))
    {
    }

    xgrammar::CompiledGrammar compiled;
    mutable kva::automaton automaton;
    uint32_t vocab_size;
};

struct kva_xg_matcher {
    const kva_xg_grammar *grammar;
    xgrammar::GrammarMatcher matcher;
    uint32_t vocab_size;
};

extern "C" kva_xg_status kva_xg_vocab_create(const kva_xg_vocab_params *params, kva_xg_vocab **ret,
                                             kva_xg_why *why)
{
    return fenced(nullptr, why, [&] {
        std::vector<std::string> tokens;
        tokens.reserve(params->token_count);
        for (uint32_t i = 0; i < params->token_count; i++)
            tokens.emplace_back(params->tokens[i].bytes ? params->tokens[i].bytes : "",
                                params->tokens[i].length);
        std::vector<int32_t> stops(params->stop_ids, params->stop_ids + params->stop_count);
        const xgrammar::TokenizerInfo info(tokens, xgrammar::VocabType::RAW,
                                           int(params->vocab_size), stops);
        *ret = new kva_xg_vocab{info, std::make_shared<kva::token_lengths>(info)};
        return KVA_XG_OK;
    });
}

extern "C" void kva_xg_vocab_destroy(kva_xg_vocab *vocab)
{
    delete vocab;
}

extern "C" kva_xg_status kva_xg_check(const kva_xg_source *source, const kva_xg_limits *limits,
                                      kva_xg_why *why)
{
    return fenced(limits, why, [&] {
        read_source(source);
        return KVA_XG_OK;
    });
}

extern "C" kva_xg_status kva_xg_rules(const kva_xg_source *source, const kva_xg_limits *limits,
                                      char **ret, kva_xg_why *why)
{
    char *copy = nullptr;
    kva_xg_status status = fenced(limits, why, [&] {
        const std::string text = read_source(source).ToString();
        copy = strdup(text.c_str());
        return copy ? KVA_XG_OK : KVA_XG_MEMORY;
    });
    if (status == KVA_XG_OK)
        *ret = copy;
    else
        free(copy);
    return status;
}

extern "C" kva_xg_status kva_xg_compile(const kva_xg_vocab *vocab, const kva_xg_source *source,
                                        const kva_xg_limits *limits, kva_xg_grammar **ret,
                                        kva_xg_why *why)
{
    kva_xg_grammar *grammar = nullptr;
    kva_xg_status status = fenced(limits, why, [&] {
        xgrammar::GrammarCompiler compiler(vocab->info, 1, false);
        xgrammar::Grammar read =
            source->kind == KVA_XG_TAGS ? read_tags(source, vocab->info) : read_source(source);
        grammar = new kva_xg_grammar(compiler.CompileGrammar(read), vocab->lengths);
        return KVA_XG_OK;
    });
    if (status != KVA_XG_OK) {
        delete grammar;
        return status;
    }
    /* Masks that are wanted soon; what is not ready within its limits is made when it is asked for. */
    fenced(limits, nullptr, [&] {
        xgrammar::GrammarMatcher matcher(grammar->compiled);
        grammar->automaton.prepare(matcher, prepare_ns);
        return KVA_XG_OK;
    });
    *ret = grammar;
    return KVA_XG_OK;
}

extern "C" void kva_xg_grammar_destroy(kva_xg_grammar *grammar)
{
    delete grammar;
}

extern "C" size_t kva_xg_grammar_bytes(const kva_xg_grammar *grammar)
{
    return grammar->compiled.MemorySizeBytes() + grammar->automaton.bytes();
}

/* --- matchers -------------------------------------------------------------------------------- */

extern "C" kva_xg_status kva_xg_matcher_create(const kva_xg_grammar *grammar, kva_xg_matcher **ret,
                                               kva_xg_why *why)
{
    return fenced(nullptr, why, [&] {
        *ret = new kva_xg_matcher{grammar, xgrammar::GrammarMatcher(grammar->compiled),
                                  grammar->vocab_size};
        return KVA_XG_OK;
    });
}

extern "C" void kva_xg_matcher_destroy(kva_xg_matcher *matcher)
{
    delete matcher;
}

extern "C" kva_xg_status kva_xg_matcher_accept(kva_xg_matcher *matcher, uint32_t token,
                                               const kva_xg_limits *limits)
{
    return fenced(limits, nullptr, [&] {
        bool accepted = token < matcher->vocab_size && !matcher->matcher.IsTerminated() &&
                        matcher->matcher.AcceptToken(int32_t(token));
        return accepted ? KVA_XG_OK : KVA_XG_REFUSED;
    });
}

extern "C" kva_xg_status kva_xg_matcher_accept_text(kva_xg_matcher *matcher, const char *text,
                                                    size_t length, const kva_xg_limits *limits)
{
    return fenced(limits, nullptr, [&] {
        bool accepted = !matcher->matcher.IsTerminated() &&
                        matcher->matcher.AcceptString(std::string(text, length));
        return accepted ? KVA_XG_OK : KVA_XG_REFUSED;
    });
}

extern "C" void kva_xg_matcher_undo(kva_xg_matcher *matcher)
{
    matcher->matcher.Rollback(1);
}

static void fill_anew(kva_xg_matcher *matcher, uint32_t *mask)
{
    int64_t words = (int64_t(matcher->vocab_size) + 31) / 32;
    memset(mask, 0xff, size_t(words) * sizeof(*mask));
    DLTensor tensor = {};
    tensor.data = mask;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &words;
    matcher->matcher.FillNextTokenBitmask(&tensor);
}

extern "C" kva_xg_status kva_xg_matcher_mask(kva_xg_matcher *matcher, uint32_t *mask,
                                             const kva_xg_limits *limits)
{
    if (matcher->matcher.IsTerminated())
        return KVA_XG_REFUSED;
    return fenced(limits, nullptr, [&] {
        if (!matcher->grammar->automaton.mask(matcher->matcher, mask))
            fill_anew(matcher, mask);
        return KVA_XG_OK;
    });
}

extern "C" kva_xg_status kva_xg_matcher_mask_anew(kva_xg_matcher *matcher, uint32_t *mask,
                                                  const kva_xg_limits *limits)
{
    if (matcher->matcher.IsTerminated())
        return KVA_XG_REFUSED;
    return fenced(limits, nullptr, [&] {
        fill_anew(matcher, mask);
        return KVA_XG_OK;
    });
}

extern "C" bool kva_xg_matcher_completed(const kva_xg_matcher *matcher)
{
    return matcher->matcher.IsCompleted();
}

extern "C" bool kva_xg_matcher_ended(const kva_xg_matcher *matcher)
{
    return matcher->matcher.IsTerminated();
}
